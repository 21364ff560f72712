// A random session of several groups that share one pool, checked against a simple model of workers and
// requests.
//
// Purpose: groups of both kinds, and of several models, are added, lose workers, re-form and are removed;
// requests of several tenants and priorities arrive, are cancelled, refused and displaced. After every event
// the cluster must agree with the model: no request is placed twice or lost, none continues with a model
// other than the one it started with, slots and KV limits hold, a more urgent request is not passed over, the
// clock never goes back. The same seed gives the same session. Threads: one.
#ifndef BFIO_TESTS_TESTING_CLUSTER_SESSION_H_
#define BFIO_TESTS_TESTING_CLUSTER_SESSION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "router/core/scheduler/cluster.h"

namespace bfio::testing {

class ClusterSession {
 public:
  struct Setup {
    uint64_t seed = 1;
    size_t most_groups = 4;
    // KV memory never excludes a request, so the policy can be required to honour priorities.
    bool ample_kv = true;
    // Number of models, one of which each group has; 0: models are unknown.
    uint32_t models = 0;
    // Some requests are pinned to a rank, which may not exist.
    bool ranks = false;
  };

  // The cluster has no groups yet and outlives this object.
  ClusterSession(core::Cluster* cluster, const Setup& setup)
      : cluster_(*cluster), setup_(setup), rng_(setup.seed) {
    Add();
  }

  // Called after every random turn.
  std::function<void()> after_turn = [] {};

  // Events of all kinds, then only steps until every request has ended.
  void Run(int iterations) {
    for (int i = 0; i < iterations && !::testing::Test::HasFailure(); ++i) Iterate();
    while (groups_.size() > 1) Remove(groups_.begin()->first);
    if (groups_.empty()) Add();
    // The last group runs requests that started with any model.
    any_model_ = true;
    Reopen(groups_.begin()->first, true);
    CancelWithoutRank();
    for (int turn = 0; turn < 20'000 && !Drained() && !::testing::Test::HasFailure(); ++turn) Work();
    EXPECT_TRUE(Drained()) << cluster_.waiting() << " wait, " << cluster_.placed() << " are placed";
    for (const auto& [id, request] : requests_)
      EXPECT_TRUE(request.state == State::kEnded) << "request " << id << " was lost";
    EXPECT_EQ(cluster_.totals().drift_tokens, 0);
    EXPECT_EQ(cluster_.totals().policy_violations, 0);
  }
  int64_t placements() const { return placements_; }
  // Requests that were displaced from one group and placed in another.
  int64_t moved() const { return moved_; }
  // Placements of requests that are pinned to a rank.
  int64_t held() const { return held_; }

 private:
  enum class State { kWaiting, kPlaced, kEnded };
  struct Request {
    core::RequestSpec spec;
    State state = State::kWaiting;
    bool cancelled = false;
    core::GroupIndex group = -1;
    core::WorkerIndex worker = 0;
    int64_t output = 1;
    // The model that generates its tokens.
    uint32_t model = 0;
  };
  struct Part {
    int64_t apply_step = 0;
    std::vector<core::RequestId> placed, dropped;
  };
  struct Worker {
    core::WorkerSpec spec;
    int64_t step = 0, applied = 0;
    bool waits = true;
    // Requests that the worker holds, with their tokens and the tokens still to generate; requests assigned
    // to the worker that have not ended or been returned.
    std::map<core::RequestId, std::pair<int64_t, int64_t>> running;
    std::set<core::RequestId> assigned;
    std::deque<Part> parts;
  };
  struct Group {
    core::GroupKind kind = core::GroupKind::kBarrier;
    bool open = false;
    uint32_t model = 0;
    std::vector<Worker> workers;
  };

  static bool MayRun(const Request& request, const Group& group) {
    return request.spec.model == 0 || group.model == 0 || request.spec.model == group.model;
  }
  bool Drained() const { return cluster_.waiting() + cluster_.placed() == 0; }

  void Iterate() {
    for (uint64_t n = rng_.Below(4); n > 0; --n) Arrive();
    if (rng_.Below(6) == 0) CancelOne();
    if (groups_.size() < setup_.most_groups && rng_.Below(25) == 0) Add();
    if (!groups_.empty() && rng_.Below(40) == 0) Reopen(SomeGroup(), rng_.Below(4) > 0);
    if (groups_.size() > 1 && rng_.Below(80) == 0) Remove(SomeGroup());
    if (!groups_.empty() && rng_.Below(30) == 0) Drain(SomeGroup());
    Work();
  }

  core::GroupIndex SomeGroup() {
    return std::next(groups_.begin(), static_cast<int64_t>(rng_.Below(groups_.size())))->first;
  }

  core::Outcome Apply(const core::SchedulerEvent& event) {
    const int64_t before = cluster_.NextStep();
    core::Outcome outcome = cluster_.Apply(event);
    EXPECT_GE(cluster_.NextStep(), before) << "the clock goes back";
    return outcome;
  }

  // --- requests ---

  void Arrive() {
    Request request;
    request.spec.id = ++last_id_;
    request.spec.prefill_tokens = 1 + static_cast<int64_t>(rng_.Below(40));
    request.spec.max_new_tokens = 1 + static_cast<int64_t>(rng_.Below(12));
    request.spec.priority = rng_.Below(4) == 0 ? static_cast<int32_t>(rng_.Below(3)) - 1 : 0;
    request.spec.tenant = static_cast<uint32_t>(rng_.Below(3));
    request.output = 1 + static_cast<int64_t>(rng_.Below(request.spec.max_new_tokens));
    if (setup_.ranks && !groups_.empty() && rng_.Below(3) == 0)
      request.spec.held_to = {SomeGroup(), static_cast<core::WorkerIndex>(rng_.Below(4))};
    const absl::Status status = Apply(core::Enqueue{request.spec}).status;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    if (!status.ok()) return;
    requests_[request.spec.id] = request;
    EXPECT_TRUE(absl::IsAlreadyExists(Apply(core::Enqueue{request.spec}).status));
  }

  void CancelOne() {
    if (last_id_ == kFirstId) return;
    const core::RequestId id = kFirstId + 1 + rng_.Below(last_id_ - kFirstId);
    const core::CancelOutcome outcome = Apply(core::Cancel{id}).cancel;
    const auto it = requests_.find(id);
    if (it == requests_.end() || it->second.state == State::kEnded) {
      EXPECT_EQ(outcome, core::CancelOutcome::kUnknown);
    } else if (it->second.state == State::kWaiting) {
      EXPECT_EQ(outcome, core::CancelOutcome::kDequeued);
      it->second.state = State::kEnded;
    } else {
      EXPECT_EQ(outcome, core::CancelOutcome::kDropped);
      it->second.cancelled = true;
    }
  }

  // What the router does when a rank has left for good.
  void CancelWithoutRank() {
    for (auto& [id, request] : requests_) {
      if (request.state != State::kWaiting || !request.spec.held_to) continue;
      const auto group = groups_.find(request.spec.held_to->group);
      if (group != groups_.end() && request.spec.held_to->worker < std::ssize(group->second.workers))
        continue;
      EXPECT_EQ(Apply(core::Cancel{id}).cancel, core::CancelOutcome::kDequeued);
      request.state = State::kEnded;
    }
  }

  // The request has lost its worker: it waits again with its generated tokens, or its client has given up.
  void PutBack(core::RequestId id, int64_t generated) {
    Request& request = requests_.at(id);
    request.spec.prefill_tokens += generated;
    request.spec.generated_tokens += generated;
    request.spec.max_new_tokens -= generated;
    request.output = std::max<int64_t>(1, request.output - generated);
    if (request.spec.generated_tokens > 0) request.spec.model = request.model;
    if (rng_.Below(10) == 0) {
      request.state = State::kEnded;
      return;
    }
    request.state = State::kWaiting;
    EXPECT_TRUE(Apply(core::Requeue{request.spec}).status.ok());
  }

  // --- groups ---

  void Add() {
    const core::GroupIndex index = next_group_++;
    Group& group = groups_[index];
    group.kind = std::array{core::GroupKind::kBarrier, core::GroupKind::kIndependent,
                            core::GroupKind::kCoupled}[rng_.Below(3)];
    EXPECT_TRUE(Apply(core::AddGroup{index, group.kind}).status.ok());
    EXPECT_FALSE(Apply(core::AddGroup{index, group.kind}).status.ok()) << "it is there already";
    Reopen(index, true);
  }

  // Opens a new epoch: some workers stay with their requests; with `others`, new workers join.
  void Reopen(core::GroupIndex index, bool others) {
    Group& group = groups_.at(index);
    if (rng_.Below(2) == 0) Apply(core::CloseEpoch{index});
    std::vector<Worker> next, lost;
    for (Worker& worker : group.workers) (rng_.Below(2) == 0 ? next : lost).push_back(std::move(worker));
    for (Worker& worker : next) {
      worker.step = worker.applied = 0;
      worker.waits = true;
      worker.spec.accepts_new = true;
      worker.parts.clear();
    }
    while (others && (next.empty() || rng_.Below(2) == 0)) {
      next.emplace_back().spec = {
          .slots = 1 + static_cast<int32_t>(rng_.Below(4)),
          .kv_tokens = setup_.ample_kv ? 1 << 20 : 60 + static_cast<int64_t>(rng_.Below(60))};
    }
    std::map<core::RequestId, int64_t> expected = PlacedIn(index, lost);
    // A group with running requests keeps its model.
    const bool anew =
        std::all_of(next.begin(), next.end(), [](const Worker& w) { return w.running.empty(); });
    if (setup_.models > 0 && anew) group.model = 1 + static_cast<uint32_t>(rng_.Below(setup_.models));
    if (any_model_) group.model = 0;
    core::OpenEpoch epoch{index, {}, group.model};
    for (size_t g = 0; g < next.size(); ++g) {
      core::EpochMember& member = epoch.members.emplace_back();
      member.spec = next[g].spec;
      std::erase_if(next[g].assigned, [&](core::RequestId id) { return !next[g].running.contains(id); });
      for (const auto& [id, tokens] : next[g].running) {
        member.resident.push_back({id, tokens.first});
        expected.erase(id);
        requests_.at(id).worker = static_cast<core::WorkerIndex>(g);
      }
    }
    group.workers = std::move(next);
    group.open = !group.workers.empty();
    PutBackAll(Apply(epoch).displaced, expected);
  }

  void Remove(core::GroupIndex index) {
    const std::map<core::RequestId, int64_t> expected = PlacedIn(index, groups_.at(index).workers);
    groups_.erase(index);
    PutBackAll(Apply(core::RemoveGroup{index}).displaced, expected);
    EXPECT_EQ(cluster_.group(index), nullptr);
    EXPECT_TRUE(absl::IsNotFound(Apply(core::MakePlan{index}).status));
  }

  // Requests placed in the group that are not cancelled, with the number of tokens that `workers` have
  // generated for each.
  std::map<core::RequestId, int64_t> PlacedIn(core::GroupIndex index, const std::vector<Worker>& workers) {
    std::map<core::RequestId, int64_t> placed;
    for (auto& [id, request] : requests_) {
      if (request.state != State::kPlaced || request.group != index) continue;
      if (!request.cancelled) placed[id] = 0;
    }
    for (const Worker& worker : workers) {
      for (const auto& [id, tokens] : worker.running) {
        const auto it = placed.find(id);
        if (it != placed.end()) it->second = tokens.first - requests_.at(id).spec.prefill_tokens;
      }
    }
    return placed;
  }

  void PutBackAll(const std::vector<core::RequestId>& displaced,
                  const std::map<core::RequestId, int64_t>& expected) {
    std::vector<core::RequestId> ids;
    for (const auto& [id, generated] : expected) ids.push_back(id);
    EXPECT_EQ(displaced, ids);
    // Cancelled requests ended with their worker.
    for (auto& [id, request] : requests_) {
      if (request.state == State::kPlaced && !cluster_.LocationOf(id) && request.cancelled)
        request.state = State::kEnded;
    }
    for (auto it = displaced.rbegin(); it != displaced.rend(); ++it) {
      const auto found = expected.find(*it);
      if (found != expected.end()) PutBack(*it, found->second);
    }
  }

  void Drain(core::GroupIndex index) {
    Group& group = groups_.at(index);
    if (group.workers.empty()) return;
    const size_t g = rng_.Below(group.workers.size());
    group.workers[g].spec.accepts_new = rng_.Below(3) > 0;
    Apply(core::SetAcceptsNew{index, static_cast<core::WorkerIndex>(g), group.workers[g].spec.accepts_new});
  }

  // --- steps ---

  // Decides for all groups, then takes a step of some groups that have work.
  void Work() {
    const std::vector<core::GroupIndex> order = cluster_.DecisionOrder();
    size_t open = 0;
    for (const auto& [index, group] : groups_) open += group.open ? 1 : 0;
    EXPECT_EQ(order.size(), open);
    for (const core::GroupIndex index : order) Plan(index);
    for (auto& [index, group] : groups_) {
      if (!group.open || rng_.Below(3) == 0) continue;
      if (group.kind != core::GroupKind::kBarrier) {
        for (size_t g = 0; g < group.workers.size(); ++g) {
          const Worker& worker = group.workers[g];
          if (rng_.Below(2) == 0 && (!worker.waits || !worker.parts.empty())) Step(index, group, {g});
        }
      } else if (!cluster_.group(index)->Parked()) {
        std::vector<size_t> ranks;
        for (size_t g = 0; g < group.workers.size(); ++g)
          ranks.insert(ranks.begin() + static_cast<int64_t>(rng_.Below(ranks.size() + 1)), g);
        Step(index, group, ranks);
      }
    }
    after_turn();
  }

  void Plan(core::GroupIndex index) {
    Group& group = groups_.at(index);
    while (const auto plan = Apply(core::MakePlan{index}).plan) {
      std::vector<Part> parts(group.workers.size());
      int32_t least_urgent = std::numeric_limits<int32_t>::max();
      for (const core::Placement& placement : plan->placements) {
        EXPECT_GE(placement.wait_steps, 0);
        Request& request = requests_.at(placement.id);
        EXPECT_TRUE(request.state == State::kWaiting) << "request " << placement.id << " is placed twice";
        EXPECT_TRUE(MayRun(request, group)) << "request " << placement.id << " began on model "
                                            << request.spec.model << " and goes on with " << group.model;
        EXPECT_TRUE(group.workers[placement.worker].spec.accepts_new);
        request.state = State::kPlaced;
        request.model = group.model;
        moved_ += request.group >= 0 && request.group != index ? 1 : 0;
        request.group = index;
        request.worker = placement.worker;
        if (request.spec.held_to) {
          EXPECT_EQ(*request.spec.held_to, (core::RequestSpec::HeldRank{index, placement.worker}))
              << "request " << placement.id;
          ++held_;
        } else {
          least_urgent = std::min(least_urgent, request.spec.priority);
        }
        parts[placement.worker].placed.push_back(placement.id);
        group.workers[placement.worker].assigned.insert(placement.id);
        EXPECT_EQ(cluster_.LocationOf(placement.id), (core::Cluster::Location{index, placement.worker}));
        ++placements_;
      }
      for (const core::Drop& drop : plan->drops) parts[drop.worker].dropped.push_back(drop.id);
      for (size_t g = 0; g < parts.size(); ++g) {
        parts[g].apply_step = plan->apply_steps.empty() ? plan->apply_step : plan->apply_steps[g];
        if (parts[g].apply_step > 0) group.workers[g].parts.push_back(std::move(parts[g]));
        CheckCapacity(group.workers[g]);
      }
      if (setup_.ample_kv && !plan->placements.empty()) CheckUrgency(group, least_urgent);
    }
  }

  void CheckCapacity(const Worker& worker) {
    EXPECT_LE(worker.assigned.size(), static_cast<size_t>(worker.spec.slots));
    int64_t reserved = 0;
    for (const core::RequestId id : worker.assigned) reserved += requests_.at(id).spec.kv_reserve_tokens();
    EXPECT_LE(reserved, worker.spec.kv_tokens);
  }

  // No waiting request that the group may run is more urgent than one that was placed.
  void CheckUrgency(const Group& group, int32_t least_urgent) {
    for (const core::WaitingView& waiting : cluster_.pool().views().views()) {
      if (!MayRun(requests_.at(waiting.id), group)) continue;
      EXPECT_LE(waiting.priority, least_urgent) << "request " << waiting.id << " was passed over";
    }
  }

  // One step of these workers of a group; of all of them, if they share a barrier.
  void Step(core::GroupIndex index, Group& group, const std::vector<size_t>& ranks) {
    std::map<size_t, std::vector<core::RequestId>> finished, rejected;
    std::map<size_t, core::StepReport> reports;
    for (const size_t g : ranks) reports[g] = StepOne(group, g, finished[g], rejected[g]);
    bool idle = true;
    for (const size_t g : ranks) {
      idle = idle && group.workers[g].running.empty();
      for (const Part& part : group.workers[g].parts) idle = idle && part.placed.empty();
    }
    for (const size_t g : ranks) {
      core::StepReport& report = reports[g];
      report.group_idle = group.workers[g].waits = idle;
      report.finished = finished[g];
      report.rejected = rejected[g];
      const absl::Status status =
          Apply(core::Report{index, static_cast<core::WorkerIndex>(g), report}).status;
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  core::StepReport StepOne(Group& group, size_t g, std::vector<core::RequestId>& finished,
                           std::vector<core::RequestId>& rejected) {
    Worker& worker = group.workers[g];
    core::StepReport report;
    report.step = ++worker.step;
    const bool at_once = group.kind != core::GroupKind::kBarrier;
    while (!worker.parts.empty() && (at_once || worker.parts.front().apply_step <= worker.step)) {
      ApplyPart(worker, worker.parts.front(), rejected);
      worker.parts.pop_front();
    }
    report.applied_plan = worker.applied;
    for (auto it = worker.running.begin(); it != worker.running.end();) {
      report.load_tokens += it->second.first++;
      if (--it->second.second > 0) {
        ++it;
        continue;
      }
      finished.push_back(it->first);
      requests_.at(it->first).state = State::kEnded;
      worker.assigned.erase(it->first);
      it = worker.running.erase(it);
    }
    return report;
  }

  void ApplyPart(Worker& worker, const Part& part, std::vector<core::RequestId>& rejected) {
    worker.applied = part.apply_step;
    for (const core::RequestId id : part.dropped) {
      worker.running.erase(id);
      worker.assigned.erase(id);
      const auto it = requests_.find(id);
      if (it != requests_.end() && it->second.cancelled) it->second.state = State::kEnded;
    }
    for (const core::RequestId id : part.placed) {
      Request& request = requests_.at(id);
      if (rng_.Below(25) == 0) {
        rejected.push_back(id);
        worker.assigned.erase(id);
        ++request.spec.refusals;
        request.state = request.cancelled ? State::kEnded : State::kWaiting;
      } else {
        worker.running[id] = {request.spec.prefill_tokens, request.output};
      }
    }
  }

  // A large number, as router request ids are.
  static constexpr core::RequestId kFirstId = core::RequestId{1'800'000'000} << 20;

  core::Cluster& cluster_;
  const Setup setup_;
  Rng rng_;
  core::RequestId last_id_ = kFirstId;
  core::GroupIndex next_group_ = 0;
  std::map<core::GroupIndex, Group> groups_;
  std::map<core::RequestId, Request> requests_;
  int64_t placements_ = 0, moved_ = 0, held_ = 0;
  bool any_model_ = false;
};

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_CLUSTER_SESSION_H_
