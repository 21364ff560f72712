// A worker for tests of groups, without a process.
//
// Purpose: one rank that follows proto/bfio/v1/worker.proto: the messages it was sent, the requests it holds,
// its reports of steps. Threads: one.
#ifndef BFIO_TESTS_TESTING_SIM_WORKER_H_
#define BFIO_TESTS_TESTING_SIM_WORKER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/group/commands.h"
#include "tests/testing/simple_book.h"

namespace bfio::router {

// A plan on its way to a worker.
struct SentPlan {
  struct Assigned {
    core::RequestId id = 0;
    uint32_t prompt = 0, first_index = 0, max_new = 0;
    bool resumable = true;
  };
  PlanPart part;
  std::vector<Assigned> assigned;
};

// One rank that follows proto/bfio/v1/worker.proto.
struct SimWorker {
  // State of one request: `s` prompt tokens, tokens from first_index on, max_new tokens in total.
  struct Resident {
    uint32_t s = 0, first_index = 0, made = 0, max_new = 0;
    bool resumable = true;

    uint32_t delivered() const { return first_index + made; }
    bool ended() const { return delivered() >= max_new; }
    int64_t kv() const { return int64_t{s} + made; }
    int64_t reserved() const { return int64_t{s} + (max_new - first_index) - 1; }
  };

  std::string name, group, model;
  int32_t slots = 4;
  int64_t kv_tokens = 1000;
  bool steps_alone = true;
  // Whether it stands for an engine with its own API, which ends its requests when the connection is lost.
  bool passes = false;
  bool prefix_cache = false;
  std::string barrier = "star";

  // Number of this process's start, where the worker reports it; number of its connections so far.
  uint64_t instance = 0, streams = 0;
  // 0: not connected.
  MemberId member = 0;
  std::deque<std::variant<EpochOffer, SentPlan, SendShutdown, CloseMember>> inbox;
  uint64_t followed = 0;
  // The worker's epoch; empty outside of one.
  std::optional<EpochOffer> epoch;
  std::deque<SentPlan> plans;
  std::map<core::RequestId, Resident> residents;
  // Resumable requests that ended while no router was connected.
  std::map<core::RequestId, Resident> ended;
  int64_t step = 1, applied = 0;
  bool parked = true, shut_down = false;
  // Messages that the router has not received yet.
  std::deque<std::function<void()>> outbox;
  // Requests that it refuses when they are assigned next, with the status.
  std::map<core::RequestId, absl::Status> refuses;

  WorkerHello Hello() const {
    WorkerHello hello;
    hello.worker_id = name;
    hello.group = group;
    hello.model = model;
    hello.slots = slots;
    hello.kv_tokens = hello.max_sequence_tokens = kv_tokens;
    hello.engine = "test";
    hello.barrier = barrier;
    hello.communicator_offer = absl::StrCat("at ", name);
    hello.active = Active();
    hello.router_instance = followed;
    hello.steps_alone = steps_alone;
    hello.passes = passes;
    hello.prefix_cache = prefix_cache;
    hello.worker_instance = instance;
    hello.stream = streams;
    return hello;
  }
  std::vector<HeldActive> Active() const {
    std::vector<HeldActive> active;
    for (const auto& [id, resident] : residents) active.push_back({id, resident.kv(), resident.made});
    return active;
  }
  Announcement Announce() const {
    Announcement announcement;
    announcement.epoch = epoch->epoch;
    const auto add = [&](core::RequestId id, const Resident& resident) {
      if (!resident.resumable) return;
      HeldRequest& held = announcement.requests.emplace_back();
      held.id = id;
      held.request.request_id = absl::StrCat(id);
      held.request.prompt_tokens = resident.s - resident.first_index;
      held.request.max_new_tokens = resident.max_new;
      held.first_index = resident.first_index;
      for (uint32_t i = 0; i < resident.delivered(); ++i) held.tokens.push_back(TokenOf(id, i));
      if (resident.ended()) held.ended = FinishReason::kLength;
      announcement.bytes.push_back(100);
    };
    for (const auto& [id, resident] : residents) add(id, resident);
    for (const auto& [id, resident] : ended) add(id, resident);
    return announcement;
  }
  void LeaveEpoch() {
    epoch.reset();
    plans.clear();
    step = 1;
    applied = 0;
    parked = true;
  }
  bool lockstep() const { return epoch->plan_mode == core::PlanMode::kLockstep; }
  bool CanStep() const {
    if (!epoch) return false;
    if (!parked && (epoch->independent || !lockstep())) return true;
    return !plans.empty() && (epoch->independent || plans.back().part.apply_step >= step);
  }
  int64_t Pending() const {
    int64_t pending = static_cast<int64_t>(residents.size());
    for (const SentPlan& plan : plans) pending += static_cast<int64_t>(plan.assigned.size());
    return pending;
  }
  // The local part of its next step. REQUIRES: CanStep().
  StepReport Compute() {
    StepReport report;
    report.epoch = epoch->epoch;
    report.step = step++;
    while (!plans.empty() && (epoch->independent || plans.front().part.apply_step <= report.step)) {
      followed = epoch->router_instance;
      applied = plans.front().part.apply_step;
      for (const core::RequestId id : plans.front().part.cancellations) residents.erase(id);
      for (const SentPlan::Assigned& request : plans.front().assigned) Admit(request, report);
      plans.pop_front();
    }
    report.applied_plan = applied;
    for (auto it = residents.begin(); it != residents.end();) {
      auto& [id, resident] = *it;
      report.load_tokens += resident.kv();
      report.tokens.push_back({id, 1});
      report.token_ids.push_back(TokenOf(id, resident.delivered()));
      ++resident.made;
      if (resident.ended()) {
        report.finished.push_back({id, FinishReason::kLength});
        it = residents.erase(it);
      } else {
        ++it;
      }
    }
    report.active_requests = static_cast<uint32_t>(residents.size());
    report.local = report.group_max_local = absl::Milliseconds(10);
    return report;
  }

 private:
  void Admit(const SentPlan::Assigned& request, StepReport& report) {
    Resident resident{request.prompt + request.first_index, request.first_index, 0, request.max_new,
                      request.resumable};
    int64_t kv = resident.reserved();
    for (const auto& [id, other] : residents) kv += other.reserved();
    absl::Status status;
    if (const auto it = refuses.find(request.id); it != refuses.end()) {
      status = it->second;
      refuses.erase(it);
    } else if (static_cast<int32_t>(residents.size()) >= slots || kv > kv_tokens) {
      status = absl::ResourceExhaustedError("no room");
    }
    if (status.ok()) {
      residents[request.id] = resident;
    } else {
      report.rejected.push_back({request.id, status});
    }
  }
};

}  // namespace bfio::router

#endif  // BFIO_TESTS_TESTING_SIM_WORKER_H_
