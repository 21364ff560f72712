// A worker for tests of groups, without a process: the messages it was sent, the requests it holds, its
// reports of steps. Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "router/group/commands.h"

namespace bfio::router {

// Token `index` of the request that its client numbers `number`, from a worker of this model.
inline uint32_t TokenOf(uint64_t number, uint32_t index, const std::string& model = "") {
  const uint32_t tag = model.empty() ? 0 : static_cast<uint8_t>(model[0]);
  return tag << 24 | (static_cast<uint32_t>(number * 2048 + index) & 0xffffff);
}

// A plan on its way to a worker.
struct SentPlan {
  struct Assigned {
    core::RequestId id = 0;
    uint64_t number = 0;
    uint32_t prompt = 0, first_index = 0, max_new = 0;
    bool resumable = true;
  };
  PlanPart part;
  std::vector<Assigned> assigned;
};

// One rank that follows proto/bfio/v1/worker.proto.
struct SimWorker {
  struct Resident {
    uint64_t number = 0;
    // Prompt tokens with those before first_index; tokens of this placement; tokens in total.
    uint32_t s = 0, first_index = 0, made = 0, max_new = 0;
    bool resumable = true;

    uint32_t delivered() const { return first_index + made; }
    bool ended() const { return delivered() >= max_new; }
    int64_t kv() const { return int64_t{s} + made; }
    int64_t reserved() const { return int64_t{s} + (max_new - first_index) - 1; }
  };

  std::string name, group, model, barrier = "star";
  int32_t slots = 4;
  int64_t kv_tokens = 1000;
  bool steps_alone = true, prefix_cache = false;
  // Whether it stands for an engine with its own API, which ends its requests when the connection is lost.
  bool passes = false;

  // Number of this process's start, where the worker reports it; number of its connections so far.
  uint64_t instance = 0, streams = 0;
  // 0: not connected.
  MemberId member = 0;
  std::deque<std::variant<EpochOffer, SentPlan, SendShutdown, CloseMember>> inbox;
  // Messages that the router has not received yet.
  std::deque<std::function<void()>> outbox;
  uint64_t followed = 0;
  std::optional<EpochOffer> epoch;
  std::deque<SentPlan> plans;
  // Requests that run here; resumable ones that ended while no router was connected.
  std::map<core::RequestId, Resident> residents, ended;
  int64_t step = 1, applied = 0;
  bool parked = true, shut_down = false;
  // Requests that it refuses when they are assigned next, with the status.
  std::map<core::RequestId, absl::Status> refuses;

  WorkerHello Hello() const {
    WorkerHello hello = {.worker_id = name, .group = group, .model = model, .slots = slots};
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
    Announcement announcement = {.epoch = epoch->epoch};
    for (const auto* const all : {&residents, &ended}) {
      for (const auto& [id, resident] : *all) {
        if (!resident.resumable) continue;
        HeldRequest& held = announcement.requests.emplace_back();
        held.id = id;
        held.request.request_id = absl::StrCat(resident.number);
        held.request.prompt_tokens = resident.s - resident.first_index;
        held.request.max_new_tokens = resident.max_new;
        held.request.resumable = true;
        held.first_index = resident.first_index;
        for (uint32_t i = 0; i < resident.delivered(); ++i)
          held.tokens.push_back(TokenOf(resident.number, i, model));
        if (resident.ended()) held.ended = FinishReason::kLength;
        announcement.bytes.push_back(100);
      }
    }
    return announcement;
  }
  void Disconnect() {
    member = 0;
    inbox.clear();
    outbox.clear();
    LeaveEpoch();
  }
  void LeaveEpoch() {
    epoch.reset();
    plans.clear();
    step = 1;
    applied = 0;
    parked = true;
  }
  bool CanStep() const {
    if (!epoch) return false;
    const bool lockstep = epoch->plan_mode == core::PlanMode::kLockstep;
    if (!parked && (epoch->independent || !lockstep)) return true;
    return !plans.empty() && (epoch->independent || plans.back().part.apply_step >= step);
  }
  bool Idle() const {
    return residents.empty() && std::all_of(plans.begin(), plans.end(),
                                            [](const SentPlan& plan) { return plan.assigned.empty(); });
  }
  // The local part of its next step. REQUIRES: it is in an epoch.
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
    for (auto& [id, resident] : residents) {
      report.load_tokens += resident.kv();
      report.tokens.push_back({id, 1});
      report.token_ids.push_back(TokenOf(resident.number, resident.delivered(), model));
      ++resident.made;
      if (resident.ended()) report.finished.push_back({id, FinishReason::kLength});
    }
    std::erase_if(residents, [](const auto& resident) { return resident.second.ended(); });
    report.active_requests = static_cast<uint32_t>(residents.size());
    report.local = report.group_max_local = absl::Milliseconds(10);
    return report;
  }

 private:
  void Admit(const SentPlan::Assigned& request, StepReport& report) {
    const Resident resident{request.number,      request.prompt + request.first_index,
                            request.first_index, 0,
                            request.max_new,     request.resumable};
    int64_t kv = resident.reserved();
    for (const auto& [id, other] : residents) kv += other.reserved();
    if (const auto refused = refuses.extract(request.id); !refused.empty()) {
      report.rejected.push_back({request.id, refused.mapped()});
    } else if (static_cast<int32_t>(residents.size()) >= slots || kv > kv_tokens) {
      report.rejected.push_back({request.id, absl::ResourceExhaustedError("no room")});
    } else {
      residents[request.id] = resident;
    }
  }
};

}  // namespace bfio::router
