// A random session of groups that share one pool, checked against a simple model of workers and requests.
//
// Purpose: groups are added, lose workers, re-form and are removed; requests arrive, are cancelled, refused,
// preempted and displaced; reports of workers without a barrier come late. After every event the cluster must
// agree with the model: no request is placed twice or lost, none continues with a model other than the one it
// started with, slots and KV limits hold, a more urgent request is not passed over, the clock never goes
// back. The same seed gives the same session. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
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
    // Of which each group has one.
    std::vector<core::GroupKind> kinds = {core::GroupKind::kBarrier, core::GroupKind::kIndependent,
                                          core::GroupKind::kCoupled};
    // KV memory never excludes a request, so the policy can be required to honour priorities.
    bool ample_kv = true;
    // Requests reserve the memory that they may need. Otherwise each generates all tokens that it may, and a
    // worker whose memory does not suffice preempts the requests that it has placed last.
    bool reserves = true;
    // By how many tokens a request grows with each that it generates; unset: another number in each step.
    std::optional<int64_t> growth = 1;
    // Number of models, one of which each group has; 0: models are unknown.
    uint32_t models = 0;
    // Some requests are pinned to a rank, which may not exist.
    bool ranks = false;
    // For logs: also speeds, costs, hints, prompts in chunks and up to levels, caches of prefixes, recovered
    // requests, plans before all reports, and wrong or repeated reports. Drift is then not the scheduler's.
    bool varied = false;
  };

  // The cluster has no groups yet and outlives this object.
  ClusterSession(core::Cluster* cluster, const Setup& setup)
      : cluster_(*cluster), setup_(setup), rng_(setup.seed) {
    Add();
  }

  // Some events, a decision of each group, and steps of some groups.
  void Iterate() {
    for (uint64_t n = rng_.Below(4); n > 0; --n) Arrive();
    if (OneIn(6)) CancelOne();
    if (groups_.size() < setup_.most_groups && OneIn(25)) Add();
    if (OneIn(40)) Reopen(SomeGroup(), !OneIn(4));
    if (groups_.size() > 1 && OneIn(80)) Remove(SomeGroup());
    ChangeWorker(SomeGroup());
    Work();
  }
  // Events of all kinds, then only steps until every request has ended.
  void Run(int iterations) {
    for (int i = 0; i < iterations && !::testing::Test::HasFailure(); ++i) Iterate();
    while (groups_.size() > 1) Remove(groups_.begin()->first);
    // The last group runs requests that started with any model.
    any_model_ = true;
    Reopen(groups_.begin()->first, true);
    // As the router does when a rank has left for good.
    std::erase_if(requests_, [this](const auto& of) {
      return !of.second.placed && of.second.spec.held_to &&
             Apply(core::Cancel{of.first}).cancel == core::CancelOutcome::kDequeued;
    });
    for (int turn = 0; turn < 20'000 && !Drained() && !::testing::Test::HasFailure(); ++turn) Work();
    EXPECT_TRUE(Drained()) << cluster_.waiting() << " wait, " << cluster_.placed() << " are placed";
    for (const auto& [id, request] : requests_) ADD_FAILURE() << "request " << id << " was lost";
    EXPECT_TRUE(cluster_.totals().drift_tokens == 0 || setup_.growth != 1);
    EXPECT_EQ(cluster_.totals().policy_violations, 0);
  }
  // Placements that workers have accepted.
  int64_t placements() const { return placements_; }
  // Requests that were displaced from one group and placed in another.
  int64_t moved() const { return moved_; }
  // Of requests that are pinned to a rank.
  int64_t held() const { return held_; }
  int64_t requests() const { return static_cast<int64_t>(last_id_ - kFirstId); }
  // For lack of memory. Steps of workers whose requests may need more memory than they have.
  int64_t preempted() const { return preempted_; }
  int64_t promised() const { return promised_; }

 private:
  struct Request {
    core::RequestSpec spec;
    bool placed = false, cancelled = false;
    core::GroupIndex group = -1;
    int64_t output = 1;
    // The model that generates its tokens.
    uint32_t model = 0;
  };
  struct Running {
    // Tokens that it holds, tokens to generate, prompt tokens to compute.
    int64_t load = 0, left = 0, prompt_left = 0;
    // In the order of placement.
    int64_t number = 0;
  };
  struct Part {
    int64_t apply_step = 0;
    std::vector<core::RequestId> placed, dropped;
  };
  // A worker's report of a step, which names the lists beside it.
  struct Done {
    core::StepReport report;
    std::vector<core::RequestId> finished, rejected, preempted, dropped;
    std::vector<core::CompletionHint> hints;
    std::vector<core::CachedPrompt> cached;
    // Tokens that the preempted requests have generated; tokens of the remaining ones during the step.
    std::vector<int64_t> generated;
    int64_t left = 0;
  };
  struct Worker {
    core::WorkerSpec spec;
    int64_t step = 0, applied = 0;
    bool waits = true, chunks = false, metered = false;
    // Requests that the worker holds; requests assigned to it that have not ended or been returned, as far as
    // the cluster has heard.
    std::map<core::RequestId, Running> running;
    std::set<core::RequestId> assigned;
    // On their way to the worker, and to the cluster.
    std::deque<Part> parts;
    std::deque<Done> done;
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

  bool OneIn(uint64_t n) { return rng_.Below(n) == 0; }
  int64_t Below(uint64_t n) { return static_cast<int64_t>(rng_.Below(n)); }
  int64_t UpTo(uint64_t n) { return 1 + Below(n); }

  core::GroupIndex SomeGroup() {
    return std::next(groups_.begin(), static_cast<int64_t>(rng_.Below(groups_.size())))->first;
  }

  core::Outcome Apply(const core::SchedulerEvent& event) {
    const int64_t before = cluster_.NextStep();
    core::Outcome outcome = cluster_.Apply(event);
    EXPECT_GE(cluster_.NextStep(), before) << "the clock goes back";
    return outcome;
  }

  void Arrive() {
    Request request;
    request.spec.id = ++last_id_;
    request.spec.prefill_tokens = UpTo(40);
    request.spec.max_new_tokens = UpTo(12);
    request.spec.priority = OneIn(4) ? static_cast<int32_t>(rng_.Below(3)) - 1 : 0;
    request.spec.tenant = static_cast<uint32_t>(rng_.Below(3));
    request.output = request.spec.max_new_tokens;
    if (setup_.reserves) request.output = UpTo(request.output);
    if (setup_.growth < 0) request.spec.prefill_tokens = 30 + UpTo(15);
    if (setup_.varied) Vary(request.spec);
    if (setup_.ranks && OneIn(3))
      request.spec.held_to = {SomeGroup(), static_cast<core::WorkerIndex>(rng_.Below(4))};
    const absl::Status status = Apply(core::Enqueue{request.spec}).status;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    if (!status.ok()) return;
    requests_[request.spec.id] = request;
    EXPECT_TRUE(absl::IsAlreadyExists(Apply(core::Enqueue{request.spec}).status));
  }

  void Vary(core::RequestSpec& spec) {
    if (OneIn(3)) spec.predicted_output_tokens = spec.max_new_tokens;
    if (OneIn(5)) spec.seniority = Below(60) - 10;
    if (OneIn(13)) spec.computed_tokens = spec.prefill_tokens - 1;
    if (OneIn(5)) spec.ttft_objective_s = 0.02 * static_cast<double>(1 + rng_.Below(9));
    if (OneIn(11)) spec.held_to = {SomeGroup(), static_cast<core::WorkerIndex>(rng_.Below(3))};
    if (OneIn(7)) spec.deadline_us = 1000 + Below(13);
    if (!OneIn(3)) return;
    // One to three blocks of prompts that begin alike.
    std::vector<uint64_t> blocks;
    for (uint64_t name = 0; blocks.empty() || (blocks.size() < 3 && OneIn(2));)
      blocks.push_back(name = 3 * name + 1 + rng_.Below(3));
    spec.prefill_tokens += static_cast<int64_t>(blocks.size()) * core::kPrefixBlockTokens;
    spec.prefix = std::make_shared<const std::vector<uint64_t>>(std::move(blocks));
  }

  void CancelOne() {
    if (last_id_ == kFirstId) return;
    const core::RequestId id = kFirstId + 1 + rng_.Below(last_id_ - kFirstId);
    const core::CancelOutcome outcome = Apply(core::Cancel{id}).cancel;
    const auto it = requests_.find(id);
    if (it == requests_.end()) {
      EXPECT_EQ(outcome, core::CancelOutcome::kUnknown);
    } else if (!it->second.placed) {
      EXPECT_EQ(outcome, core::CancelOutcome::kDequeued);
      requests_.erase(it);
    } else {
      EXPECT_EQ(outcome, core::CancelOutcome::kDropped);
      it->second.cancelled = true;
    }
  }

  // The request has lost its worker: it waits again with its generated tokens, or its client has given up.
  void PutBack(core::RequestId id, int64_t generated) {
    Request& request = requests_.at(id);
    if (request.cancelled || OneIn(10)) {
      requests_.erase(id);
      return;
    }
    request.spec.prefill_tokens += generated;
    request.spec.generated_tokens += generated;
    request.spec.max_new_tokens -= generated;
    request.output = std::max<int64_t>(1, request.output - generated);
    if (request.spec.generated_tokens > 0) request.spec.model = request.model;
    if (!setup_.reserves) request.spec.priority = 1;
    if (setup_.varied && OneIn(2)) request.spec.waited_steps = Below(40);
    request.placed = false;
    EXPECT_TRUE(Apply(core::Requeue{request.spec}).status.ok());
  }

  void Add() {
    const core::GroupIndex index = next_group_++;
    Group& group = groups_[index];
    group.kind = setup_.kinds[rng_.Below(setup_.kinds.size())];
    EXPECT_TRUE(Apply(core::AddGroup{index, group.kind}).status.ok());
    EXPECT_FALSE(Apply(core::AddGroup{index, group.kind}).status.ok()) << "it is there already";
    Reopen(index, true);
  }

  // Opens a new epoch: some workers stay with their requests; with `others`, new workers join.
  void Reopen(core::GroupIndex index, bool others) {
    Group& group = groups_.at(index);
    DeliverAll(index, group);
    if (OneIn(2)) Apply(core::CloseEpoch{index});
    std::vector<Worker> next, lost;
    for (Worker& worker : group.workers)
      (OneIn(2) ? next : lost).push_back({.spec = worker.spec, .running = std::move(worker.running)});
    while (others && (next.empty() || OneIn(2))) {
      next.emplace_back().spec = {.slots = static_cast<int32_t>(UpTo(4)),
                                  .kv_tokens = setup_.ample_kv ? 1 << 20 : 60 + Below(60),
                                  .service_time = 1 + rng_.Uniform()};
    }
    if (setup_.varied) Vary(next);
    std::map<core::RequestId, int64_t> expected = PlacedIn(index, lost);
    // A group with running requests keeps its model.
    const bool anew =
        std::all_of(next.begin(), next.end(), [](const Worker& w) { return w.running.empty(); });
    if (setup_.models > 0 && anew) group.model = 1 + static_cast<uint32_t>(rng_.Below(setup_.models));
    if (any_model_) group.model = 0;
    core::OpenEpoch epoch{index, {}, group.model};
    for (size_t g = 0; g < next.size(); ++g) {
      core::EpochMember& member = epoch.members.emplace_back();
      next[g].spec.accepts_new = true;
      member.spec = next[g].spec;
      for (const auto& [id, running] : next[g].running) {
        next[g].assigned.insert(id);
        member.resident.push_back({id, running.load});
        expected.erase(id);
      }
      if (!setup_.varied) continue;
      if (OneIn(8)) member.resident.push_back({kNobody, 7});
      if (next[g].running.empty() && OneIn(2))
        Recover({.group = index, .model = group.model}, member, next[g]);
    }
    group.workers = std::move(next);
    group.open = !group.workers.empty();
    PutBackAll(Apply(epoch).displaced, expected);
  }

  // The order, speeds, costs and caches of an epoch's workers, and which of them compute prompts in chunks.
  void Vary(std::vector<Worker>& workers) {
    const bool costs = !OneIn(4), chunks = OneIn(2), metered = OneIn(2);
    if (workers.size() > 1 && OneIn(2)) std::rotate(workers.begin(), workers.end() - 1, workers.end());
    for (Worker& worker : workers) {
      if (worker.spec.member == 0) {
        worker.spec.member = ++last_member_;
        worker.spec.prefix_cache = !OneIn(3);
        worker.spec.kv_tokens += 200;
      }
      worker.spec.time_per_token = OneIn(4) ? 1.5 : 1;
      worker.spec.cost.reset();
      // Where all ranks report the cost of their batches, prompts are planned by it.
      if (costs) worker.spec.cost = BatchCost{.c_s = 0.01, .a_s_per_token = 1e-4, .b0_tokens = 4};
      worker.chunks = chunks || !OneIn(3);
      worker.metered = metered;
      for (auto& [id, running] : worker.running) running.prompt_left *= worker.chunks ? 1 : 0;
    }
  }

  // The worker joins with a request of another router.
  void Recover(Request request, core::EpochMember& member, Worker& worker) {
    core::RequestSpec& spec = request.spec;
    spec.id = ++last_id_;
    spec.generated_tokens = Below(5);
    spec.prefill_tokens = 1 + spec.generated_tokens + Below(30);
    spec.max_new_tokens = request.output = UpTo(8);
    request.placed = true;
    worker.running[spec.id] = {.load = spec.prefill_tokens, .left = request.output};
    worker.assigned.insert(spec.id);
    member.resident.push_back({spec.id, spec.prefill_tokens});
    member.recovered.push_back(spec);
    requests_[spec.id] = request;
  }

  // The worker may not exist.
  void ChangeWorker(core::GroupIndex index) {
    std::vector<Worker>& workers = groups_.at(index).workers;
    const size_t g = rng_.Below(workers.size() + 1);
    const auto worker = static_cast<core::WorkerIndex>(g);
    if (OneIn(30)) {
      const bool accepts_new = !OneIn(3);
      if (g < workers.size()) workers[g].spec.accepts_new = accepts_new;
      Apply(core::SetAcceptsNew{index, worker, accepts_new});
    }
    if (!setup_.varied) return;
    if (OneIn(30)) Apply(core::SetTime{index, worker, 0.5 + rng_.Uniform(), 50 * rng_.Uniform()});
    if (OneIn(30)) Apply(core::SetServiceTime{index, worker, 0.5 + rng_.Uniform()});
    if (OneIn(30)) {
      const double a = 1e-5 * static_cast<double>(1 + rng_.Below(20));
      Apply(core::SetCost{index, worker, {.c_s = 0.02, .a_s_per_token = a, .b0_tokens = 16}});
    }
  }

  void Remove(core::GroupIndex index) {
    DeliverAll(index, groups_.at(index));
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
      if (request.placed && request.group == index && !request.cancelled) placed[id] = 0;
    }
    for (const Worker& worker : workers) {
      for (const auto& [id, running] : worker.running) {
        const auto it = placed.find(id);
        if (it != placed.end()) it->second = requests_.at(id).output - running.left;
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
    std::erase_if(requests_, [this](const auto& of) {
      return of.second.placed && of.second.cancelled && !cluster_.LocationOf(of.first);
    });
    for (auto it = displaced.rbegin(); it != displaced.rend(); ++it) {
      const auto found = expected.find(*it);
      if (found != expected.end()) PutBack(*it, found->second);
    }
  }

  // Decides for all groups, then takes a step of some groups that have work.
  void Work() {
    const std::vector<core::GroupIndex> order = cluster_.DecisionOrder();
    size_t open = 0;
    for (const auto& [index, group] : groups_) open += group.open ? 1 : 0;
    EXPECT_EQ(order.size(), open);
    for (const core::GroupIndex index : order) Plan(index);
    for (auto& [index, group] : groups_) {
      if (!group.open || OneIn(3)) continue;
      if (group.kind != core::GroupKind::kBarrier) {
        for (size_t g = 0; g < group.workers.size(); ++g) {
          Worker& worker = group.workers[g];
          if (!worker.done.empty() && OneIn(2)) Deliver(index, group, g);
          if (OneIn(2) && (!worker.waits || !worker.parts.empty())) {
            Step(group, g);
            worker.done.back().report.group_idle = worker.waits = worker.running.empty();
          }
        }
      } else if (!cluster_.group(index)->Parked()) {
        std::vector<size_t> ranks;
        for (size_t g = 0; g < group.workers.size(); ++g)
          ranks.insert(ranks.begin() + static_cast<int64_t>(rng_.Below(ranks.size() + 1)), g);
        StepTogether(index, group, ranks);
      }
    }
  }

  void Plan(core::GroupIndex index, bool force = false) {
    Group& group = groups_.at(index);
    while (const auto plan = Apply(core::MakePlan{index, std::exchange(force, false)}).plan) {
      std::vector<Part> parts(group.workers.size());
      int32_t least_urgent = std::numeric_limits<int32_t>::max();
      for (const core::Placement& placement : plan->placements) {
        EXPECT_GE(placement.wait_steps, 0);
        Request& request = requests_.at(placement.id);
        EXPECT_FALSE(request.placed) << "request " << placement.id << " is placed twice";
        EXPECT_TRUE(MayRun(request, group)) << "request " << placement.id << " began on model "
                                            << request.spec.model << " and goes on with " << group.model;
        EXPECT_TRUE(group.workers[placement.worker].spec.accepts_new);
        request.placed = true;
        request.model = group.model;
        moved_ += request.group >= 0 && request.group != index ? 1 : 0;
        request.group = index;
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
    EXPECT_TRUE(!setup_.reserves || reserved <= worker.spec.kv_tokens) << reserved;
  }

  // No waiting request that the group may run is more urgent than one that was placed.
  void CheckUrgency(const Group& group, int32_t least_urgent) {
    for (const core::WaitingView& waiting : cluster_.pool().views().views()) {
      if (!MayRun(requests_.at(waiting.id), group)) continue;
      EXPECT_LE(waiting.priority, least_urgent) << "request " << waiting.id << " was passed over";
    }
  }

  // A step of all workers of a group with a barrier.
  void StepTogether(core::GroupIndex index, Group& group, const std::vector<size_t>& order) {
    bool idle = true;
    for (const size_t g : order) {
      Step(group, g);
      idle = idle && group.workers[g].running.empty();
    }
    for (const Worker& worker : group.workers) {
      for (const Part& part : worker.parts) idle = idle && part.placed.empty();
    }
    for (const size_t g : order) {
      group.workers[g].done.back().report.group_idle = idle;
      Deliver(index, group, g);
      if (setup_.varied && !idle && g != order.back() && OneIn(12)) Plan(index, true);
    }
  }

  void Step(Group& group, size_t g) {
    Worker& worker = group.workers[g];
    Done& done = worker.done.emplace_back();
    core::StepReport& report = done.report;
    report.step = ++worker.step;
    const bool at_once = group.kind != core::GroupKind::kBarrier;
    while (!worker.parts.empty() && (at_once || worker.parts.front().apply_step <= worker.step)) {
      ApplyPart(worker, worker.parts.front(), done);
      worker.parts.pop_front();
    }
    report.applied_plan = worker.applied;
    if (!setup_.reserves) PreemptYoungest(worker, done);
    const int64_t growth = setup_.growth ? *setup_.growth : Below(5);
    int64_t budget = 48 + static_cast<int64_t>(g);
    if (worker.chunks) {
      report.prefill.emplace().token_budget = budget;
      report.prefill->metered = worker.metered && !OneIn(40);
    }
    for (auto it = worker.running.begin(); it != worker.running.end();) {
      auto& [id, running] = *it;
      if (setup_.varied && OneIn(60)) {
        it = Preempt(worker, it, done);
        continue;
      }
      const int64_t chunk = std::min(budget, running.prompt_left);
      budget -= chunk;
      running.prompt_left -= chunk;
      report.load_tokens += running.load;
      if (running.prompt_left > 0) {
        report.prefill->prompts.push_back({id, running.prompt_left});
      } else if (--running.left == 0) {
        done.finished.push_back(id);
        it = worker.running.erase(it);
        continue;
      } else {
        done.left += running.load;
        running.load += growth;
        if (setup_.varied)
          done.hints.push_back({id, static_cast<double>(static_cast<float>(rng_.Uniform()))});
      }
      ++it;
    }
    if (setup_.varied && OneIn(30)) ++report.load_tokens;
    if (setup_.varied && OneIn(50)) done.finished.push_back(kNobody);
  }

  void ApplyPart(Worker& worker, const Part& part, Done& done) {
    worker.applied = part.apply_step;
    for (const core::RequestId id : part.dropped) {
      worker.running.erase(id);
      done.dropped.push_back(id);
    }
    for (const core::RequestId id : part.placed) {
      const Request& request = requests_.at(id);
      if (OneIn(25)) {
        done.rejected.push_back(id);
      } else {
        Running& running = worker.running[id] = {
            .load = request.spec.prefill_tokens, .left = request.output, .number = ++placements_};
        if (worker.chunks) running.prompt_left = request.spec.prefill_tokens;
        const absl::Span<const uint64_t> blocks = request.spec.prefix_blocks();
        if (blocks.empty() || !worker.spec.prefix_cache) continue;
        // Often fewer blocks than expected.
        const int64_t cached = core::kPrefixBlockTokens * Below(blocks.size() + 1);
        done.cached.push_back({id, cached});
        running.prompt_left = std::max<int64_t>(0, running.prompt_left - cached);
      }
    }
  }

  using RunningMap = std::map<core::RequestId, Running>;
  RunningMap::iterator Preempt(Worker& worker, RunningMap::iterator running, Done& done) {
    done.preempted.push_back(running->first);
    done.generated.push_back(requests_.at(running->first).output - running->second.left);
    return worker.running.erase(running);
  }

  void PreemptYoungest(Worker& worker, Done& done) {
    int64_t load = 0, reserved = 0;
    for (const auto& [id, running] : worker.running) load += running.load;
    for (; load > worker.spec.kv_tokens; ++preempted_) {
      const auto youngest =
          std::max_element(worker.running.begin(), worker.running.end(),
                           [](const auto& a, const auto& b) { return a.second.number < b.second.number; });
      load -= youngest->second.load;
      Preempt(worker, youngest, done);
    }
    for (const auto& [id, running] : worker.running) reserved += requests_.at(id).spec.kv_reserve_tokens();
    promised_ += reserved > worker.spec.kv_tokens ? 1 : 0;
  }

  // The worker's oldest report arrives.
  void Deliver(core::GroupIndex index, Group& group, size_t g) {
    Worker& worker = group.workers[g];
    Done done = std::move(worker.done.front());
    worker.done.pop_front();
    core::Report event{index, static_cast<core::WorkerIndex>(g), done.report};
    event.report.finished = done.finished;
    event.report.rejected = done.rejected;
    event.report.preempted = done.preempted;
    event.report.hints = done.hints;
    event.report.cached = done.cached;
    const absl::Status status = Apply(event).status;
    EXPECT_TRUE(status.ok()) << status;
    if (group.kind == core::GroupKind::kBarrier && !setup_.varied) {
      // The predicted load of the next step is what the remaining requests held, plus a token each.
      const auto account = cluster_.group(index)->Account(event.worker);
      EXPECT_EQ(account.load_tokens, done.left + account.active)
          << "worker " << g << ", step " << worker.step;
    }
    for (const auto* const ids : {&done.finished, &done.rejected, &done.preempted, &done.dropped}) {
      for (const core::RequestId id : *ids) worker.assigned.erase(id);
    }
    for (const core::RequestId id : done.rejected) {
      Request& request = requests_.at(id);
      ++request.spec.refusals;
      request.placed = false;
      if (request.cancelled) requests_.erase(id);
    }
    for (size_t i = 0; i < done.preempted.size(); ++i) PutBack(done.preempted[i], done.generated[i]);
    for (const auto* const ids : {&done.finished, &done.dropped}) {
      for (const core::RequestId id : *ids) requests_.erase(id);
    }
    if (setup_.varied && OneIn(40)) Apply(event);
  }

  void DeliverAll(core::GroupIndex index, Group& group) {
    for (size_t g = 0; g < group.workers.size(); ++g) {
      while (!group.workers[g].done.empty()) Deliver(index, group, g);
    }
  }

  // A large number, as router request ids are.
  static constexpr core::RequestId kFirstId = core::RequestId{1'800'000'000} << 20;
  static constexpr core::RequestId kNobody = core::RequestId{1} << 60;

  core::Cluster& cluster_;
  const Setup setup_;
  Rng rng_;
  core::RequestId last_id_ = kFirstId;
  core::GroupIndex next_group_ = 0;
  uint64_t last_member_ = 0;
  std::map<core::GroupIndex, Group> groups_;
  std::map<core::RequestId, Request> requests_;
  int64_t placements_ = 0, moved_ = 0, held_ = 0, preempted_ = 0, promised_ = 0;
  bool any_model_ = false;
};

}  // namespace bfio::testing
