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
  std::unique_ptr<OneGroup> group = std::make_unique<OneGroup>(
      SchedulerOptions(), *MakePolicy("least_work", {}), nullptr, GroupKind::kIndependent);
  std::vector<int64_t> step, applied;

  explicit Ranks(std::vector<uint64_t> members) { Open(members); }
  std::vector<RequestId> Open(const std::vector<uint64_t>& members,
                              std::vector<std::vector<RequestId>> hold = {}) {
    std::vector<EpochMember> epoch(members.size());
    for (size_t g = 0; g < members.size(); ++g) {
      epoch[g].spec = {
          .slots = 20, .kv_tokens = 1000 * kPerBlock, .prefix_cache = true, .member = members[g]};
      if (g < hold.size()) {
        for (const RequestId id : hold[g]) epoch[g].resident.push_back({id, 1});
      }
    }
    step.assign(members.size(), 0);
    applied.assign(members.size(), 0);
    return group->OpenEpoch(std::move(epoch));
  }
  // Places the request; returns its worker.
  WorkerIndex Place(const RequestSpec& request) {
    EXPECT_TRUE(group->Enqueue(request).ok());
    return Decide().placements.at(0).worker;
  }
  void PlaceOn(WorkerIndex worker, RequestSpec request) {
    request.held_to = {OneGroup::kGroup, worker};
    EXPECT_EQ(Place(request), worker);
  }
  Plan Decide() {
    const std::optional<Plan> plan = group->MakePlan();
    EXPECT_TRUE(plan.has_value());
    if (!plan) return {};
    for (size_t g = 0; g < applied.size(); ++g) applied[g] = std::max(applied[g], plan->apply_steps[g]);
    return *plan;
  }
  void Report(WorkerIndex worker, StepReport report) {
    report.step = ++step[static_cast<size_t>(worker)];
    report.applied_plan = applied[static_cast<size_t>(worker)];
    EXPECT_TRUE(group->OnReport(worker, report).ok());
  }
  void Step(WorkerIndex worker, int64_t load, std::vector<CachedPrompt> cached,
            std::vector<RequestId> finished) {
    Report(worker, {.load_tokens = load, .finished = finished, .cached = cached});
  }
  // A step after which these prompts are left to compute.
  void Compute(WorkerIndex worker, std::vector<PendingPrompt> prompts) {
    Report(worker, {.prefill = PrefillReport{2048, std::move(prompts)}});
  }
  // The clients cancel, so the requests are dropped; `prompts` stay.
  void Drop(WorkerIndex worker, const std::vector<RequestId>& ids, std::vector<PendingPrompt> prompts = {}) {
    for (const RequestId id : ids) EXPECT_EQ(group->Cancel(id), CancelOutcome::kDropped);
    Decide();
    Compute(worker, std::move(prompts));
  }
};

TEST(Prefix, PromptsThatBeginAlikeMeet) {
  Ranks ranks({1, 2, 3});
  const WorkerIndex first = ranks.Place(Prompt(1, {1, 2, 3}));
  const WorkerIndex second = ranks.Place(Prompt(2, {11, 12, 13}));
  EXPECT_NE(first, second);
  ranks.Step(first, 202, {{1, 0}}, {1});
  ranks.Step(second, 202, {{2, 0}}, {2});
  for (RequestId id = 10; id < 20; id += 2) {
    EXPECT_EQ(ranks.Place(Prompt(id, {1, 2, 3, id + 100})), first);
    EXPECT_EQ(ranks.Place(Prompt(id + 1, {11, 12, 13, id + 100})), second);
    ranks.Step(first, 266, {{id, 3 * kPerBlock}}, {id});
    ranks.Step(second, 266, {{id + 1, 3 * kPerBlock}}, {id + 1});
  }
  EXPECT_EQ(ranks.group->totals().drift_tokens, 0);
}

TEST(Prefix, AWorkerHasAPromptWhileItsRequestRuns) {
  Ranks ranks({1, 2});
  const WorkerIndex worker = ranks.Place(Prompt(1, {1, 2, 3, 4, 5, 6, 7, 8}));
  ranks.Step(worker, 522, {{1, 0}}, {});
  EXPECT_EQ(ranks.Place(Prompt(2, {1, 2, 3, 4, 5, 6, 7, 8})), worker);
}

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
  Ranks ranks({1, 2});
  const WorkerIndex worker = ranks.Place(Prompt(1, {1, 2, 3}));
  ranks.Step(1 - worker, 0, {{1, 0}, {99, 5}}, {});
  ranks.Step(worker, 202, {{1, 0}}, {1});
  EXPECT_EQ(ranks.Place(Prompt(2, {1, 2, 3})), worker);
}

// Two long prompts on one worker are not computed yet. They count by the tokens to compute, without those
// that will be cached.
TEST(Prefix, PromptsOnTheirWayCountByWhatTheyCompute) {
  Ranks ranks({1, 2});
  const WorkerIndex worker = ranks.Place(Prompt(1, {1, 2, 3, 4, 5, 6, 7, 8}));
  ranks.Step(worker, 522, {{1, 0}}, {1});
  // All but ten tokens of each are cached: both have less to compute than one block on the other worker.
  EXPECT_EQ(ranks.Place(Prompt(2, {1, 2, 3, 4, 5, 6, 7, 8})), worker);
  EXPECT_EQ(ranks.Place(Prompt(3, {1, 2, 3, 4, 5, 6, 7, 8})), worker);
  // A prompt that no worker has cached goes to the idle one.
  EXPECT_EQ(ranks.Place(Prompt(4, {90, 91})), 1 - worker);
}

TEST(Prefix, AWorkerThatRefusesARequestDoesNotAttractItAgain) {
  Ranks ranks({1, 2});
  ranks.PlaceOn(1, Prompt(1, {1, 2, 3, 4}));
  ranks.Step(1, 266, {{1, 0}}, {1});
  EXPECT_EQ(ranks.Place(Prompt(2, {1, 2, 3, 4})), 1);
  const std::vector<RequestId> refused = {2};
  ranks.Report(1, {.rejected = refused, .group_idle = true});
  EXPECT_EQ(ranks.Decide().placements.at(0).worker, 0) << "though it has the prefix";
}

// Below, worker 1 gets the first prompt. If nothing of the second one is expected there, it goes to worker 0.
const std::initializer_list<uint64_t> kPrompt = {1, 2, 3, 4, 5, 6, 7, 8};

TEST(Prefix, ARefusedPromptIsNotThere) {
  Ranks ranks({1, 2});
  ranks.PlaceOn(1, Prompt(1, kPrompt));
  const std::vector<RequestId> refused = {1};
  ranks.Report(1, {.rejected = refused, .group_idle = true});
  EXPECT_EQ(ranks.group->Cancel(1), CancelOutcome::kDequeued);
  EXPECT_EQ(ranks.Place(Prompt(2, kPrompt)), 0);
}

TEST(Prefix, APromptWhoseRequestLeavesBeforeItIsComputedIsNotThere) {
  Ranks at_once({1, 2});
  at_once.PlaceOn(1, Prompt(1, kPrompt));
  at_once.Drop(1, {1});
  EXPECT_EQ(at_once.Place(Prompt(2, kPrompt)), 0);

  Ranks later({1, 2});
  later.PlaceOn(1, Prompt(1, kPrompt));
  later.Compute(1, {{1, 522}});
  later.Drop(1, {1});
  EXPECT_EQ(later.Place(Prompt(2, kPrompt)), 0);

  Ranks preempted({1, 2});
  preempted.PlaceOn(1, Prompt(1, kPrompt));
  preempted.Compute(1, {{1, 522}});
  const std::vector<RequestId> ids = {1};
  preempted.Report(1, {.preempted = ids, .prefill = PrefillReport()});
  EXPECT_EQ(preempted.Place(Prompt(2, kPrompt)), 0);
}

TEST(Prefix, APromptThatIsComputedStaysWithoutItsRequest) {
  Ranks ranks({1, 2});
  ranks.PlaceOn(1, Prompt(1, kPrompt));
  ranks.Compute(1, {{1, 300}});
  ranks.Compute(1, {});
  ranks.Drop(1, {1});
  EXPECT_EQ(ranks.Place(Prompt(2, kPrompt)), 1);
}

TEST(Prefix, WhatAChunkHasComputedStays) {
  for (const bool more_elsewhere : {false, true}) {
    Ranks ranks({1, 2});
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
  Ranks ranks({1, 2});
  for (const RequestId id : {1, 2, 3}) ranks.PlaceOn(1, Prompt(id, kPrompt));
  ranks.Compute(1, {{1, 522}, {2, 522}, {3, 522}});
  ranks.Drop(1, {1}, {{2, 522}, {3, 522}});
  EXPECT_EQ(ranks.Place(Prompt(4, kPrompt)), 1) << "when the two are computed";
  ranks.Compute(1, {{2, 522}, {3, 522}, {4, 522}});
  ranks.Drop(1, {2, 3, 4});
  EXPECT_EQ(ranks.Place(Prompt(5, kPrompt)), 0);
}

TEST(Prefix, APromptThatIsOnItsWayWhenTheEpochEndsIsNotThere) {
  Ranks lost({1, 2});
  lost.PlaceOn(1, Prompt(1, kPrompt));
  EXPECT_EQ(lost.Open({1, 2}), std::vector<RequestId>{1});
  EXPECT_EQ(lost.Place(Prompt(2, kPrompt)), 0);

  Ranks kept({1, 2});
  kept.PlaceOn(1, Prompt(1, kPrompt));
  EXPECT_TRUE(kept.Open({1, 2}, {{}, {1}}).empty());
  EXPECT_EQ(kept.Place(Prompt(2, kPrompt)), 1) << "its worker has the request";
  kept.Drop(1, {1, 2});
  EXPECT_EQ(kept.Place(Prompt(3, kPrompt)), 0);
}

}  // namespace
}  // namespace bfio::core
