// The scheduler's view of its workers' prefix caches, from placements, ends, epochs and workers' reports.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

constexpr int64_t kPerBlock = kPrefixBlockTokens;

RequestSpec Prompt(RequestId id, std::initializer_list<uint64_t> blocks, int64_t more = 10) {
  return {.id = id,
          .prefill_tokens = static_cast<int64_t>(blocks.size()) * kPerBlock + more,
          .max_new_tokens = 50,
          .prefix = std::make_shared<const std::vector<uint64_t>>(blocks)};
}

struct Ranks {
  OneGroup group{SchedulerOptions(), *MakePolicy("least_work", {}), nullptr, GroupKind::kIndependent};
  std::vector<int64_t> step, applied;

  explicit Ranks(const std::vector<uint64_t>& members = {1, 2}) { Open(members); }
  std::vector<RequestId> Open(const std::vector<uint64_t>& members,
                              std::optional<RequestId> last_holds = {}) {
    std::vector<EpochMember> epoch;
    for (const uint64_t member : members) {
      epoch.push_back(
          {.spec = {.slots = 20, .kv_tokens = 1000 * kPerBlock, .prefix_cache = true, .member = member}});
    }
    if (last_holds) epoch.back().resident.push_back({*last_holds, 1});
    step.assign(members.size(), 0);
    applied.assign(members.size(), 0);
    return group.OpenEpoch(std::move(epoch));
  }
  // Places the request; returns its worker.
  WorkerIndex Place(const RequestSpec& request) {
    EXPECT_TRUE(group.Enqueue(request).ok());
    return Decide();
  }
  void PlaceOn(WorkerIndex worker, RequestSpec request) {
    request.held_to = {OneGroup::kGroup, worker};
    EXPECT_EQ(Place(request), worker);
  }
  // The worker of the first placement.
  WorkerIndex Decide() {
    const std::optional<Plan> plan = group.MakePlan();
    EXPECT_TRUE(plan.has_value());
    if (!plan) return kNoWorker;
    for (size_t g = 0; g < applied.size(); ++g) applied[g] = std::max(applied[g], plan->apply_steps[g]);
    return plan->placements.empty() ? kNoWorker : plan->placements[0].worker;
  }
  void Report(WorkerIndex worker, StepReport report) {
    report.step = ++step[static_cast<size_t>(worker)];
    report.applied_plan = applied[static_cast<size_t>(worker)];
    EXPECT_TRUE(group.OnReport(worker, report).ok());
  }
  void Step(WorkerIndex worker, int64_t load, std::vector<CachedPrompt> cached,
            std::vector<RequestId> finished) {
    Report(worker, {.load_tokens = load, .finished = finished, .cached = cached});
  }
  // Steps in which the worker refuses a request, or preempts it.
  void Refuse(WorkerIndex worker, std::vector<RequestId> ids) {
    Report(worker, {.rejected = ids, .group_idle = true});
  }
  void Preempt(WorkerIndex worker, std::vector<RequestId> ids) {
    Report(worker, {.preempted = ids, .prefill = PrefillReport()});
  }
  // A step after which these prompts are left to compute.
  void Compute(WorkerIndex worker, std::vector<PendingPrompt> prompts) {
    Report(worker, {.prefill = PrefillReport{2048, std::move(prompts)}});
  }
  // The clients cancel, so the requests are dropped; `prompts` stay.
  void Drop(WorkerIndex worker, const std::vector<RequestId>& ids, std::vector<PendingPrompt> prompts = {}) {
    for (const RequestId id : ids) EXPECT_EQ(group.Cancel(id), CancelOutcome::kDropped);
    Decide();
    Compute(worker, std::move(prompts));
  }
};

TEST(Prefix, AWorkerThatFindsNothingGetsNoMoreThanOthers) {
  Ranks ranks({1, 2, 3});
  std::vector<int> placed(3, 0);
  // Requests come one at a time, so the expected cache contents alone decide.
  for (RequestId id = 1; id <= 900; ++id) {
    const WorkerIndex worker = ranks.Place(Prompt(id, {1, 2, 3}));
    if (id > 840) ++placed[static_cast<size_t>(worker)];
    ranks.Step(worker, 202, {{id, 0}}, {id});
  }
  for (const int count : placed) EXPECT_EQ(count, 20) << "its prefix caching is off";
}

TEST(Prefix, AMemberKeepsItsCacheUnderAnotherRank) {
  Ranks ranks({1, 2, 3});
  const WorkerIndex worker = ranks.Place(Prompt(1, {1, 2, 3}));
  ranks.Step(worker, 202, {{1, 0}}, {1});
  const auto member = static_cast<uint64_t>(worker) + 1;
  std::vector<uint64_t> members = {7, 8, member};
  EXPECT_TRUE(ranks.Open(members).empty());
  EXPECT_EQ(ranks.Place(Prompt(2, {1, 2, 3})), 2);
  // The worker has left, so no worker has the prefix.
  ranks.Step(2, 202, {}, {2});
  EXPECT_TRUE(ranks.Open({7, 8, 9}).empty());
  EXPECT_EQ(ranks.Place(Prompt(3, {1, 2, 3})), 0) << "in turn, the first";
}

TEST(Prefix, ACachedPromptOfAnotherWorkersRequestIsIgnored) {
  Ranks ranks;
  const WorkerIndex worker = ranks.Place(Prompt(1, {1, 2, 3}));
  ranks.Step(1 - worker, 0, {{1, 0}, {99, 5}}, {});
  ranks.Step(worker, 202, {{1, 0}}, {1});
  EXPECT_EQ(ranks.Place(Prompt(2, {1, 2, 3})), worker);
}

TEST(Prefix, AWorkerThatRefusesARequestDoesNotAttractItAgain) {
  Ranks ranks;
  ranks.PlaceOn(1, Prompt(1, {1, 2, 3, 4}));
  ranks.Step(1, 266, {{1, 0}}, {1});
  EXPECT_EQ(ranks.Place(Prompt(2, {1, 2, 3, 4})), 1);
  ranks.Refuse(1, {2});
  EXPECT_EQ(ranks.Decide(), 0) << "though it has the prefix";
}

TEST(Prefix, AWorkerThatHasLostItsCacheDoesNotAttract) {
  Ranks ranks;
  ranks.PlaceOn(1, Prompt(1, {1, 2, 3, 4}));
  ranks.Step(1, 266, {{1, 0}}, {1});
  EXPECT_EQ(ranks.Place(Prompt(2, {1, 2, 3, 4})), 1);
  ranks.Step(1, 266, {}, {2});
  ranks.Report(1, {.group_idle = true, .cache_lost_ppm = 1'000'000});
  EXPECT_EQ(ranks.Place(Prompt(3, {1, 2, 3, 4})), 0);
}

// Below, worker 1 gets the first prompt. If nothing of the second one is expected there, it goes to worker 0.
const std::initializer_list<uint64_t> kPrompt = {1, 2, 3, 4, 5, 6, 7, 8};

TEST(Prefix, APromptWhoseRequestLeavesBeforeItIsComputedIsNotThere) {
  const std::pair<const char*, void (*)(Ranks&)> kWays[] = {
      {"refused",
       [](Ranks& ranks) {
         ranks.Refuse(1, {1});
         EXPECT_EQ(ranks.group.Cancel(1), CancelOutcome::kDequeued);
       }},
      {"dropped at once", [](Ranks& ranks) { ranks.Drop(1, {1}); }},
      {"dropped later",
       [](Ranks& ranks) {
         ranks.Compute(1, {{1, 522}});
         ranks.Drop(1, {1});
       }},
      {"preempted",
       [](Ranks& ranks) {
         ranks.Compute(1, {{1, 522}});
         ranks.Preempt(1, {1});
       }},
      {"lost with its epoch",
       [](Ranks& ranks) {
         EXPECT_EQ(ranks.Open({1, 2}), std::vector<RequestId>{1});
       }},
      {"kept over an epoch, then dropped",
       [](Ranks& ranks) {
         EXPECT_TRUE(ranks.Open({1, 2}, /*last_holds=*/1).empty());
         EXPECT_EQ(ranks.Place(Prompt(9, kPrompt)), 1) << "its worker has the request";
         ranks.Drop(1, {1, 9});
       }},
  };
  for (const auto& [name, leave] : kWays) {
    SCOPED_TRACE(name);
    Ranks ranks;
    ranks.PlaceOn(1, Prompt(1, kPrompt));
    leave(ranks);
    EXPECT_EQ(ranks.Place(Prompt(2, kPrompt)), 0);
  }
}

TEST(Prefix, APromptThatIsComputedStaysWithoutItsRequest) {
  Ranks ranks;
  ranks.PlaceOn(1, Prompt(1, kPrompt));
  ranks.Compute(1, {{1, 300}});
  ranks.Compute(1, {});
  ranks.Drop(1, {1});
  EXPECT_EQ(ranks.Place(Prompt(2, kPrompt)), 1);
}

TEST(Prefix, WhatAChunkHasComputedStays) {
  for (const bool more_elsewhere : {false, true}) {
    Ranks ranks;
    ranks.PlaceOn(1, Prompt(1, kPrompt));
    ranks.Compute(1, {{1, 522 - 5 * kPerBlock}});
    ranks.Drop(1, {1});
    ranks.PlaceOn(0, more_elsewhere ? Prompt(2, {1, 2, 3, 4, 5, 6}) : Prompt(2, {1, 2, 3, 4}));
    ranks.Compute(0, {});
    ranks.Step(0, 400, {}, {2});
    EXPECT_EQ(ranks.Place(Prompt(3, kPrompt)), more_elsewhere ? 0 : 1);
  }
}

TEST(Prefix, APromptOfSeveralRequestsIsThereUntilTheLastOneLeaves) {
  Ranks ranks;
  for (const RequestId id : {1, 2, 3}) ranks.PlaceOn(1, Prompt(id, kPrompt));
  ranks.Compute(1, {{1, 522}, {2, 522}, {3, 522}});
  ranks.Drop(1, {1}, {{2, 522}, {3, 522}});
  EXPECT_EQ(ranks.Place(Prompt(4, kPrompt)), 1) << "when the two are computed";
  ranks.Compute(1, {{2, 522}, {3, 522}, {4, 522}});
  ranks.Drop(1, {2, 3, 4});
  EXPECT_EQ(ranks.Place(Prompt(5, kPrompt)), 0);
}

}  // namespace
}  // namespace bfio::core
