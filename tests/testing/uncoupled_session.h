// A random session of a scheduler whose workers share no barrier: each steps at its own pace.
//
// Purpose: drives any object with core::Scheduler's methods with arrivals, cancellations, late reports and
// changes of membership, against a simple model of the workers. It checks what must hold at any pace: plans
// for each worker's own steps, memory limits, exact counts, and that all requests end. The same seed and the
// same decisions give the same session. Threads: one.
#ifndef BFIO_TESTS_TESTING_UNCOUPLED_SESSION_H_
#define BFIO_TESTS_TESTING_UNCOUPLED_SESSION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/scheduler/scheduler.h"

namespace bfio::testing {

// A model of a worker: it steps when it holds requests or has a plan, and applies plans as they arrive. When
// memory does not suffice, it preempts the request that was admitted last.
struct UncoupledWorker {
  struct Held {
    int64_t load = 0, left = 0, reserved = 0;
    // In the order of admission.
    int64_t number = 0;
  };
  struct Plan {
    int64_t apply_step = 0;
    std::vector<core::RequestSpec> placed;
    std::vector<core::RequestId> dropped;
  };
  core::WorkerSpec spec;
  // Whether requests reserve the maximum they may hold; otherwise only the tokens they hold count.
  bool reserves = true;
  int64_t step = 0, applied = 0, admitted = 0;
  bool waits = true;
  // Whether in the last step the maximum that its requests may hold exceeded its memory.
  bool promised = false;
  std::map<core::RequestId, Held> held;
  // Plans on their way to the worker, and its reports on their way to the router.
  std::deque<Plan> plans;
  std::deque<core::StepReport> reports;
  std::deque<std::vector<core::RequestId>> finished;
  // Preempted requests, each with the prompt and generated tokens that it held.
  std::deque<std::map<core::RequestId, Held>> preempted;

  bool CanStep() const { return !waits || !plans.empty(); }

  void Step() {
    ++step;
    while (!plans.empty()) {
      for (const core::RequestId id : plans.front().dropped) held.erase(id);
      for (const core::RequestSpec& request : plans.front().placed) {
        held[request.id] = {request.prefill_tokens, request.max_new_tokens, request.kv_reserve_tokens(),
                            ++admitted};
      }
      applied = plans.front().apply_step;
      plans.pop_front();
    }
    core::StepReport report = {.step = step, .applied_plan = applied};
    TakeOut(preempted.emplace_back());
    int64_t reserved = 0;
    for (auto& [id, request] : held) {
      report.load_tokens += request.load++;
      reserved += request.reserved;
    }
    EXPECT_LE(static_cast<int32_t>(held.size()), spec.slots);
    promised = reserved > spec.kv_tokens;
    EXPECT_FALSE(reserves && promised) << reserved << " of " << spec.kv_tokens;
    std::vector<core::RequestId> ended;
    for (auto it = held.begin(); it != held.end();) {
      const bool ends = --it->second.left == 0;
      if (ends) ended.push_back(it->first);
      it = ends ? held.erase(it) : std::next(it);
    }
    waits = report.group_idle = held.empty();
    reports.push_back(report);
    finished.push_back(std::move(ended));
  }

  int64_t Load() const {
    int64_t load = 0;
    for (const auto& [id, request] : held) load += request.load;
    return load;
  }

  void TakeOut(std::map<core::RequestId, Held>& out) {
    while (Load() > spec.kv_tokens) {
      const auto youngest = std::max_element(held.begin(), held.end(), [](const auto& a, const auto& b) {
        return a.second.number < b.second.number;
      });
      out.insert(*youngest);
      held.erase(youngest);
    }
  }
};

// For any object with OneGroup's methods (one_group.h), which outlives the session.
template <typename S>
class UncoupledSession {
 public:
  // `reserves`: the scheduler admits requests only if their maximum size fits.
  UncoupledSession(S* scheduler, uint64_t seed, bool reserves)
      : scheduler_(scheduler), rng_(seed), reserves_(reserves) {
    Open();
  }

  // Called after every turn.
  std::function<void()> after_turn = [] {};

  // Takes random turns, and then only work until all requests have ended.
  void Run(int turns) {
    for (int turn = 0; turn < turns && !::testing::Test::HasFailure(); ++turn) {
      switch (rng_.Below(8)) {
        case 0:
        case 1:
          Arrive();
          break;
        case 2:
          if (rng_.Below(4) == 0) Cancel();
          break;
        case 3:
          if (rng_.Below(30) == 0) Open();
          break;
        default:
          Work();
      }
      after_turn();
    }
    for (int turn = 0; turn < 20'000 && (!live_.empty() || scheduler_->placed() > 0); ++turn) {
      Work();
      after_turn();
    }
    EXPECT_TRUE(live_.empty()) << live_.size() << " requests never ended";
    EXPECT_EQ(scheduler_->waiting() + scheduler_->placed(), 0);
    EXPECT_EQ(scheduler_->totals().drift_tokens, 0);
    EXPECT_EQ(scheduler_->totals().policy_violations, 0);
  }
  int64_t preempted() const { return preempted_; }
  int64_t requests() const { return requests_; }
  // Steps in which the maximum that a worker's requests may hold exceeded its memory.
  int64_t promised() const { return promised_; }

 private:
  // Changes the membership: some workers stay with their requests; the requests of the others are enqueued
  // again.
  void Open() {
    for (size_t g = 0; g < workers_.size(); ++g) {
      while (!workers_[g].reports.empty()) Deliver(g);
    }
    std::vector<UncoupledWorker> next;
    for (UncoupledWorker& worker : workers_) {
      if (rng_.Below(3) == 0) continue;
      worker.plans.clear();
      worker.step = worker.applied = 0;
      worker.waits = true;
      next.push_back(std::move(worker));
    }
    while (next.empty() || rng_.Below(2) == 0) {
      next.emplace_back().spec = {.slots = 1 + static_cast<int32_t>(rng_.Below(4)),
                                  .kv_tokens = 60 + static_cast<int64_t>(rng_.Below(100)),
                                  .service_time = 1 + rng_.Uniform()};
      next.back().reserves = reserves_;
    }
    workers_ = std::move(next);
    std::vector<core::EpochMember> members;
    for (const UncoupledWorker& worker : workers_) {
      core::EpochMember& member = members.emplace_back();
      member.spec = worker.spec;
      for (const auto& [id, request] : worker.held) member.resident.push_back({id, request.load});
    }
    for (const core::RequestId id : scheduler_->OpenEpoch(members)) scheduler_->Requeue(live_.at(id));
    Plan();
  }

  void Arrive() {
    core::RequestSpec request = {.id = ++last_,
                                 .prefill_tokens = 1 + static_cast<int64_t>(rng_.Below(30)),
                                 .max_new_tokens = 1 + static_cast<int64_t>(rng_.Below(20))};
    const absl::Status status = scheduler_->Enqueue(request);
    if (status.ok()) live_[request.id] = request;
    ++requests_;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    Plan();
  }

  void Cancel() {
    if (live_.empty()) return;
    const auto it = std::next(live_.begin(), static_cast<int64_t>(rng_.Below(live_.size())));
    EXPECT_NE(scheduler_->Cancel(it->first), core::CancelOutcome::kUnknown);
    live_.erase(it);
    Plan();
  }

  void Work() {
    const size_t g = rng_.Below(workers_.size());
    if (rng_.Below(2) == 0 && workers_[g].CanStep()) {
      workers_[g].Step();
      promised_ += workers_[g].promised ? 1 : 0;
    } else if (!workers_[g].reports.empty()) {
      Deliver(g);
      Plan();
    }
  }

  void Deliver(size_t g) {
    UncoupledWorker& worker = workers_[g];
    worker.reports.front().finished = worker.finished.front();
    std::vector<core::RequestId> taken_out;
    for (const auto& [id, held] : worker.preempted.front()) taken_out.push_back(id);
    worker.reports.front().preempted = taken_out;
    const absl::Status status =
        scheduler_->OnReport(static_cast<core::WorkerIndex>(g), worker.reports.front());
    EXPECT_TRUE(status.ok()) << status;
    for (const core::RequestId id : worker.finished.front()) live_.erase(id);
    for (const auto& [id, held] : worker.preempted.front()) PlaceAgain(id, held);
    worker.reports.pop_front();
    worker.finished.pop_front();
    worker.preempted.pop_front();
  }

  void PlaceAgain(core::RequestId id, const UncoupledWorker::Held& held) {
    ++preempted_;
    const auto found = live_.find(id);
    if (found == live_.end()) return;
    core::RequestSpec& request = found->second;
    request.generated_tokens += held.load - request.prefill_tokens;
    request.prefill_tokens = held.load;
    request.max_new_tokens = held.left;
    request.priority = 1;
    scheduler_->Requeue(request);
  }

  void Plan() {
    while (const auto plan = scheduler_->MakePlan()) {
      ASSERT_EQ(plan->apply_steps.size(), workers_.size());
      std::vector<UncoupledWorker::Plan> parts(workers_.size());
      for (const core::Placement& placement : plan->placements) {
        EXPECT_GE(placement.wait_steps, 0);
        parts[placement.worker].placed.push_back(live_.at(placement.id));
      }
      for (const core::Drop& drop : plan->drops) parts[drop.worker].dropped.push_back(drop.id);
      for (size_t g = 0; g < parts.size(); ++g) {
        parts[g].apply_step = plan->apply_steps[g];
        if (parts[g].apply_step > 0) {
          EXPECT_TRUE(workers_[g].plans.empty() || workers_[g].plans.back().apply_step < parts[g].apply_step);
          workers_[g].plans.push_back(std::move(parts[g]));
        } else {
          EXPECT_TRUE(parts[g].placed.empty() && parts[g].dropped.empty());
        }
      }
    }
  }

  S* scheduler_;
  Rng rng_;
  const bool reserves_;
  int64_t preempted_ = 0, promised_ = 0, requests_ = 0;
  std::vector<UncoupledWorker> workers_;
  std::map<core::RequestId, core::RequestSpec> live_;
  // A large number, as router request ids are.
  core::RequestId last_ = core::RequestId{1'800'000'000} << 20;
};

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_UNCOUPLED_SESSION_H_
