// A random session of a scheduler: arrivals, some of them pinned to a rank, cancellations, losses of workers,
// recovered requests, refusals, preemptions, late reports.
//
// Purpose: drives any object with OneGroup's methods (one_group.h; for example one that records, or two at
// once) against a simple model of the workers, so that tests of logs and states include every kind of event.
// The same seed and the same decisions give the same session. Threads: one.
#ifndef BFIO_TESTS_TESTING_RANDOM_SESSION_H_
#define BFIO_TESTS_TESTING_RANDOM_SESSION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/scheduler/scheduler_event.h"

namespace bfio::testing {

template <typename S>
class RandomSession {
 public:
  static constexpr int32_t kSlots = 4;
  static constexpr int64_t kKv = 160;

  RandomSession(S& scheduler, uint64_t seed) : scheduler_(scheduler), rng_(seed) { Reform(false); }

  // Called at random times, to switch the policy.
  std::function<void(uint64_t random)> on_switch = [](uint64_t) {};

  // Some events, a decision, and a step of the group if it has work.
  void Iterate() {
    for (uint64_t n = rng_.Below(4); n > 0; --n) Arrive();
    if (next_id_ > first_id_ && rng_.Below(5) == 0) {
      scheduler_.Cancel(first_id_ + rng_.Below(next_id_ - first_id_));
    }
    if (rng_.Below(40) == 0) {
      scheduler_.SetAcceptsNew(static_cast<core::WorkerIndex>(rng_.Below(workers_.size() + 1)),
                               rng_.Below(3) > 0);
    }
    if (rng_.Below(30) == 0) {
      scheduler_.SetTime(static_cast<core::WorkerIndex>(rng_.Below(workers_.size() + 1)),
                         rng_.Below(3) == 0 ? 1 : 0.5 + rng_.Uniform(), static_cast<double>(rng_.Below(50)));
    }
    if (rng_.Below(30) == 0) {
      const double a = 1e-5 * static_cast<double>(1 + rng_.Below(20));
      scheduler_.SetCost(
          static_cast<core::WorkerIndex>(rng_.Below(workers_.size() + 1)),
          {.c_s = 0.02, .a_s_per_token = a, .b0_tokens = 16, .k1_s_per_pair = 1e-9, .k2_s_per_token = 1e-6});
    }
    if (rng_.Below(60) == 0) on_switch(rng_.Next());
    if (rng_.Below(50) == 0) Reform(true);
    MakePlans(false);
    if (!scheduler_.Parked()) Step();
  }

 private:
  struct Running {
    int64_t load = 0;
    int64_t remaining = 0;
    // Prompt tokens not yet computed.
    int64_t prompt_left = 0;
  };
  struct Worker {
    std::map<core::RequestId, Running> running;
    int64_t applied = 0;
  };
  struct Request {
    core::RequestSpec spec;
    int64_t output = 0;
    int64_t made = 0;
  };

  void Arrive() {
    core::RequestSpec spec = {.id = next_id_++,
                              .prefill_tokens = 1 + static_cast<int64_t>(rng_.Below(60)),
                              .max_new_tokens = 1 + static_cast<int64_t>(rng_.Below(12))};
    if (rng_.Below(3) == 0) spec.predicted_output_tokens = spec.max_new_tokens;
    spec.priority = rng_.Below(6) == 0 ? static_cast<int32_t>(rng_.Below(5)) - 2 : 0;
    spec.tenant = static_cast<uint32_t>(rng_.Below(4));
    if (rng_.Below(5) == 0) spec.seniority = static_cast<int64_t>(rng_.Below(60)) - 10;
    if (spec.id % 13 == 0) spec.computed_tokens = spec.prefill_tokens - 1;
    if (spec.id % 5 == 0) spec.ttft_objective_s = 0.02 * static_cast<double>(1 + spec.id % 9);
    // The epoch may have no such rank.
    if (spec.id % 11 == 0) spec.held_to = {0, static_cast<core::WorkerIndex>(spec.id % 3)};
    if (spec.id % 7 == 0) spec.deadline_us = 1000 + static_cast<int64_t>(spec.id % 13);
    const int64_t output = 1 + static_cast<int64_t>(rng_.Below(static_cast<uint64_t>(spec.max_new_tokens)));
    if (scheduler_.Enqueue(spec).ok()) requests_[spec.id] = {spec, output, 0};
    if (rng_.Below(30) == 0) (void)scheduler_.Enqueue(spec);  // rejected as a duplicate, or refused again
  }

  // Opens an epoch of another group, in which some workers keep their requests.
  void Reform(bool close) {
    if (close) scheduler_.CloseEpoch();
    if (close && rng_.Below(2) == 0) Arrive();
    std::vector<core::EpochMember> members(1 + rng_.Below(4));
    std::vector<Worker> next(members.size());
    ++epoch_;
    for (size_t g = 0; g < members.size(); ++g) {
      members[g].spec.slots = kSlots;
      members[g].spec.kv_tokens = kKv;
      if (rng_.Below(4) == 0) members[g].spec.time_per_token = 1.5;
      // When all ranks report the cost of their batches, prompts are planned by it.
      if (epoch_ % 4 != 1)
        members[g].spec.cost = BatchCost{.c_s = 0.01, .a_s_per_token = 1e-4, .b0_tokens = 4};
      if (g < workers_.size() && rng_.Below(3) > 0) next[g].running = std::move(workers_[g].running);
      for (const auto& [id, running] : next[g].running) members[g].resident.push_back({id, running.load});
      if (rng_.Below(8) == 0) members[g].resident.push_back({uint64_t{1} << 60, 7});
      if (rng_.Below(4) == 0) Bring(members[g], next[g]);
    }
    workers_ = std::move(next);
    plans_.clear();
    step_ = 0;
    const std::vector<core::RequestId> displaced = scheduler_.OpenEpoch(members);
    for (auto it = displaced.rbegin(); it != displaced.rend(); ++it) PutBack(*it);
  }

  // Puts a request at the front of the pool with its generated tokens, unless its client has given up.
  void PutBack(core::RequestId id) {
    Request& request = requests_.at(id);
    const int64_t made = std::min(request.made, request.spec.max_new_tokens - 1);
    request.made = 0;
    request.spec.prefill_tokens += made;
    request.spec.generated_tokens += made;
    request.spec.max_new_tokens -= made;
    request.output = std::max<int64_t>(1, request.output - made);
    if (rng_.Below(2) == 0) request.spec.waited_steps = static_cast<int64_t>(rng_.Below(40));
    if (rng_.Below(10) > 0) scheduler_.Requeue(request.spec);
  }

  // The worker joins with a request of another router.
  void Bring(core::EpochMember& member, Worker& worker) {
    Request request;
    request.spec.id = next_id_++;
    request.spec.generated_tokens = static_cast<int64_t>(rng_.Below(5));
    request.spec.prefill_tokens = 1 + request.spec.generated_tokens + static_cast<int64_t>(rng_.Below(30));
    request.spec.max_new_tokens = 1 + static_cast<int64_t>(rng_.Below(8));
    request.spec.tenant = static_cast<uint32_t>(rng_.Below(4));
    request.output = request.spec.max_new_tokens;
    worker.running[request.spec.id] = {request.spec.prefill_tokens, request.output};
    member.resident.push_back({request.spec.id, request.spec.prefill_tokens});
    member.recovered.push_back(request.spec);
    requests_[request.spec.id] = request;
  }

  void MakePlans(bool force) {
    while (auto plan = scheduler_.MakePlan(std::exchange(force, false))) plans_.push_back(*std::move(plan));
  }

  void Apply(size_t g, core::StepReport& report, std::vector<core::RequestId>& rejected) {
    Worker& worker = workers_[g];
    for (const core::Plan& plan : plans_) {
      if (plan.apply_step > step_ || plan.apply_step <= worker.applied) continue;
      for (const core::Drop& drop : plan.drops) {
        if (drop.worker == static_cast<core::WorkerIndex>(g)) worker.running.erase(drop.id);
      }
      for (const core::Placement& placement : plan.placements) {
        if (placement.worker != static_cast<core::WorkerIndex>(g)) continue;
        Request& request = requests_.at(placement.id);
        EXPECT_TRUE(!request.spec.held_to || request.spec.held_to->worker == placement.worker);
        if (rng_.Below(25) == 0) {
          rejected.push_back(placement.id);
        } else {
          worker.running[placement.id] = {request.spec.prefill_tokens, request.output,
                                          InChunks(g) ? request.spec.prefill_tokens : 0};
        }
      }
      worker.applied = plan.apply_step;
    }
    report.applied_plan = worker.applied;
  }

  // In some epochs all ranks compute prompts in chunks, in others only some do.
  bool InChunks(size_t g) const { return (epoch_ + g) % 3 != 0 || epoch_ % 2 == 0; }
  static int64_t Budget(size_t g) { return 16 + static_cast<int64_t>(g); }

  void Step() {
    ++step_;
    std::vector<std::vector<core::RequestId>> finished(workers_.size()), rejected(workers_.size()),
        preempted(workers_.size());
    std::vector<std::vector<core::CompletionHint>> hints(workers_.size());
    std::vector<core::StepReport> reports(workers_.size());
    bool idle = true;
    for (size_t g = 0; g < workers_.size(); ++g) {
      core::StepReport& report = reports[g];
      report.step = step_;
      Apply(g, report, rejected[g]);
      auto& running = workers_[g].running;
      int64_t capacity = Budget(g);
      if (InChunks(g)) report.prefill.emplace().token_budget = capacity;
      for (auto it = running.begin(); it != running.end();) {
        if (rng_.Below(60) == 0) {
          preempted[g].push_back(it->first);
          it = running.erase(it);
          continue;
        }
        const int64_t chunk = std::min(capacity, it->second.prompt_left);
        it->second.prompt_left = InChunks(g) ? it->second.prompt_left - chunk : 0;
        capacity -= chunk;
        if (it->second.prompt_left > 0) {
          report.load_tokens += it->second.load;
          report.prefill->prompts.push_back({it->first, it->second.prompt_left});
          ++it;
          continue;
        }
        report.load_tokens += it->second.load++;
        ++requests_[it->first].made;
        if (--it->second.remaining <= 0) {
          finished[g].push_back(it->first);
          it = running.erase(it);
          continue;
        }
        hints[g].push_back({it->first, static_cast<double>(static_cast<float>(rng_.Uniform()))});
        ++it;
      }
      if (rng_.Below(30) == 0)
        ++report.load_tokens;  // the worker reports a load that differs from the scheduler's count
      if (rng_.Below(50) == 0) finished[g].push_back(next_id_ + 5);
      idle = idle && running.empty();
    }
    for (const core::Plan& plan : plans_)
      idle = idle && (plan.apply_step <= step_ || plan.placements.empty());
    const size_t first = rng_.Below(workers_.size());
    for (size_t i = 0; i < workers_.size(); ++i) {
      const size_t g = (first + i) % workers_.size();
      reports[g].finished = finished[g];
      reports[g].rejected = rejected[g];
      reports[g].preempted = preempted[g];
      reports[g].hints = hints[g];
      reports[g].group_idle = idle;
      if (scheduler_.OnReport(static_cast<core::WorkerIndex>(g), reports[g]).ok()) {
        for (const core::RequestId id : preempted[g]) PutBack(id);
      }
      if (rng_.Below(40) == 0) (void)scheduler_.OnReport(static_cast<core::WorkerIndex>(g), reports[g]);
      if (!idle && i + 1 < workers_.size() && rng_.Below(12) == 0) MakePlans(true);
    }
    // Removes plans that every rank has applied.
    int64_t applied = step_;
    for (const Worker& worker : workers_) applied = std::min(applied, worker.applied);
    while (!plans_.empty() && plans_.front().apply_step <= applied) plans_.pop_front();
  }

  S& scheduler_;
  Rng rng_;
  std::vector<Worker> workers_;
  std::deque<core::Plan> plans_;
  std::map<core::RequestId, Request> requests_;
  // A large number, as router request ids are.
  const core::RequestId first_id_ = core::RequestId{1'800'000'000} << 20;
  core::RequestId next_id_ = first_id_;
  int64_t step_ = 0;
  size_t epoch_ = 0;
};

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_RANDOM_SESSION_H_
