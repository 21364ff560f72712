// What the scheduler knows of its workers' prefix caches: from placements, ends, epochs and workers' reports.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
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
    }
    step.assign(members.size(), 0);
    applied.assign(members.size(), 0);
    return group->OpenEpoch(std::move(epoch));
  }
  // The worker that it is placed on.
  WorkerIndex Place(const RequestSpec& request) {
    EXPECT_TRUE(group->Enqueue(request).ok());
    const std::optional<Plan> plan = group->MakePlan();
    EXPECT_TRUE(plan.has_value());
    for (size_t g = 0; g < applied.size(); ++g) applied[g] = std::max(applied[g], plan->apply_steps[g]);
    return plan->placements.at(0).worker;
  }
  void Step(WorkerIndex worker, int64_t load, std::vector<CachedPrompt> cached,
            std::vector<RequestId> finished) {
    const auto g = static_cast<size_t>(worker);
    const StepReport report = {.step = ++step[g],
                               .applied_plan = applied[g],
                               .load_tokens = load,
                               .finished = finished,
                               .cached = cached};
    EXPECT_TRUE(group->OnReport(worker, report).ok());
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
  // One after the other: whatever a worker seems to have decides.
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
  // It has left: nobody has the prefix.
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

// Two long prompts on one worker are not computed yet: what they will compute counts, not what they will
// find.
TEST(Prefix, PromptsOnTheirWayCountByWhatTheyCompute) {
  Ranks ranks({1, 2});
  const WorkerIndex worker = ranks.Place(Prompt(1, {1, 2, 3, 4, 5, 6, 7, 8}));
  ranks.Step(worker, 522, {{1, 0}}, {1});
  // Finds all but ten tokens each: together they have less to compute than one block on the other.
  EXPECT_EQ(ranks.Place(Prompt(2, {1, 2, 3, 4, 5, 6, 7, 8})), worker);
  EXPECT_EQ(ranks.Place(Prompt(3, {1, 2, 3, 4, 5, 6, 7, 8})), worker);
  // A prompt that neither has goes to the idle one.
  EXPECT_EQ(ranks.Place(Prompt(4, {90, 91})), 1 - worker);
}

TEST(Prefix, AWorkerThatRefusesARequestDoesNotAttractItAgain) {
  Ranks ranks({1, 2});
  const WorkerIndex worker = ranks.Place(Prompt(1, {1, 2, 3, 4}));
  const std::vector<RequestId> refused = {1};
  const StepReport report = {.step = ++ranks.step[static_cast<size_t>(worker)],
                             .applied_plan = ranks.applied[static_cast<size_t>(worker)],
                             .rejected = refused,
                             .group_idle = true};
  ASSERT_TRUE(ranks.group->OnReport(worker, report).ok());
  const std::optional<Plan> plan = ranks.group->MakePlan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->placements.at(0).worker, 1 - worker);
}

}  // namespace
}  // namespace bfio::core
