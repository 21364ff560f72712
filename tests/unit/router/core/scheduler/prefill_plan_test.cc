// Prompts as load: what the scheduler reckons with, where requests go for it, and how large pieces are.
#include "router/core/scheduler/prefill_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "tests/testing/one_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;

constexpr PrefillReport kPending = {.pending_tokens = 900, .token_budget = 512};

TEST(PendingAhead, WhatIsThereAndOnItsWayLessWhatTheStepsUntilThenTake) {
  EXPECT_EQ(PendingAhead(kPending, {}), 900);
  EXPECT_EQ(PendingAhead(kPending, {.inflight_tokens = 70}), 970);
  EXPECT_EQ(PendingAhead(kPending, {.active = 12, .steps = 1}), 400);
  EXPECT_EQ(PendingAhead(kPending, {.active = 12, .steps = 1, .piece = 100}), 800);
  EXPECT_EQ(PendingAhead(kPending, {.active = 12, .steps = 1, .piece = 5000}), 400);
  EXPECT_EQ(PendingAhead(kPending, {.active = 510, .steps = 2}), 900 - 2 * kLeastPrefillRows);
  EXPECT_EQ(PendingAhead(kPending, {.steps = 9}), 0);
}

TEST(EqualPiece, IsTheMeanRanksWorkButAtLeastTheMinimum) {
  EXPECT_EQ(EqualPiece({800, 0, 0, 0}), 200);
  EXPECT_EQ(EqualPiece({801, 0, 0, 0}), 201);
  EXPECT_EQ(EqualPiece({300, 300, 300, 300}), 300);
  EXPECT_EQ(EqualPiece({10, 0, 0, 0}), kLeastPiece);
  EXPECT_EQ(EqualPiece({0, 0}), std::nullopt);
}

RequestSpec PromptOf(RequestId id, int64_t prefill) {
  RequestSpec spec;
  spec.id = id;
  spec.prefill_tokens = prefill;
  spec.max_new_tokens = 50;
  return spec;
}

struct PlannedGroup {
  PlannedGroup(int32_t ranks, const PrefillOptions& prefill, PlanMode mode = PlanMode::kLockstep,
               const char* policy = "bf_io_auto", int32_t slots = 16) {
    SchedulerOptions options;
    options.plan_mode = mode;
    options.prefill = prefill;
    scheduler = std::make_unique<OneGroup>(options, *MakePolicy(policy, {}));
    std::vector<EpochMember> members(static_cast<size_t>(ranks));
    for (EpochMember& member : members) member.spec = {slots, 100'000, true};
    scheduler->OpenEpoch(members);
  }
  // All ranks have nothing but what they are said to have to compute.
  void Report(int64_t step, int64_t applied, const std::vector<int64_t>& loads,
              const std::vector<int64_t>& pending, bool idle = false) {
    for (size_t g = 0; g < loads.size(); ++g) {
      StepReport report;
      report.step = step;
      report.applied_plan = applied;
      report.load_tokens = loads[g];
      report.group_idle = idle;
      if (!pending.empty()) report.prefill = {pending[g], 512};
      ASSERT_TRUE(scheduler->OnReport(static_cast<WorkerIndex>(g), report).ok());
    }
  }
  // Where the one request that waits goes.
  WorkerIndex PlaceOne(RequestId id, int64_t prefill) {
    EXPECT_TRUE(scheduler->Enqueue(PromptOf(id, prefill)).ok());
    plan = scheduler->MakePlan();
    EXPECT_TRUE(plan.has_value() && plan->placements.size() == 1);
    return plan->placements.at(0).worker;
  }

  std::unique_ptr<OneGroup> scheduler;
  std::optional<Plan> plan;
};

// One rank has 3,000 tokens of which 2,488 are still to be computed, the other 3,500 that it has. 1: the next
// goes to the former; 2: to the latter.
int SecondGoesTo(const PrefillOptions& prefill, bool reported) {
  PlannedGroup group(2, prefill);
  EXPECT_TRUE(group.scheduler->Enqueue(PromptOf(1, 3000)).ok());
  EXPECT_TRUE(group.scheduler->Enqueue(PromptOf(2, 3500)).ok());
  const auto first = group.scheduler->MakePlan();
  EXPECT_EQ(first->placements.size(), 2u);
  // Whoever got the smaller one.
  WorkerIndex small = 0;
  for (const Placement& placement : first->placements) {
    if (placement.id == 1) small = placement.worker;
  }
  std::vector<int64_t> loads = {3500, 3500}, pending = {0, 0};
  loads[static_cast<size_t>(small)] = 3000;
  pending[static_cast<size_t>(small)] = 2488;
  group.Report(1, 1, loads, reported ? pending : std::vector<int64_t>());
  return group.PlaceOne(3, 100) == small ? 1 : 2;
}

TEST(PrefillWeight, ARequestGoesWhereFewerPromptTokensWaitEvenIfMoreAreResident) {
  EXPECT_EQ(SecondGoesTo({.weight = 0}, true), 1) << "the least loaded";
  EXPECT_EQ(SecondGoesTo({.weight = 16}, true), 2);
  EXPECT_EQ(SecondGoesTo({.weight = 16}, false), 1) << "a worker that says nothing computes prompts whole";
}

TEST(PrefillWeight, TwoPromptsOfOnePlanDoNotGoToOneRank) {
  PlannedGroup group(2, {.weight = 16});
  ASSERT_TRUE(group.scheduler->Enqueue(PromptOf(1, 2000)).ok());
  ASSERT_EQ(group.scheduler->MakePlan()->placements.size(), 1u);
  const WorkerIndex busy = *group.scheduler->WorkerOf(1);
  std::vector<int64_t> loads = {0, 0};
  loads[static_cast<size_t>(busy)] = 2000;
  group.Report(1, 1, loads, {0, 0});
  // By tokens both would go to the empty rank.
  ASSERT_TRUE(group.scheduler->Enqueue(PromptOf(2, 900)).ok());
  ASSERT_TRUE(group.scheduler->Enqueue(PromptOf(3, 800)).ok());
  ASSERT_EQ(group.scheduler->MakePlan()->placements.size(), 2u);
  EXPECT_NE(group.scheduler->WorkerOf(2), group.scheduler->WorkerOf(3));
}

// More wait than there are slots: the program decides who enters, and where.
TEST(PrefillWeight, TwoPromptsOfOnePlanDoNotGoToOneRankWhereSlotsAreShort) {
  for (const char* policy : {"bf_io_auto", "bf_io"}) {
    for (const double weight : {0.0, 16.0}) {
      PlannedGroup group(2, {.weight = weight}, PlanMode::kLockstep, policy, /*slots=*/3);
      ASSERT_TRUE(group.scheduler->Enqueue(PromptOf(1, 2000)).ok());
      ASSERT_EQ(group.scheduler->MakePlan()->placements.size(), 1u);
      const WorkerIndex busy = *group.scheduler->WorkerOf(1);
      std::vector<int64_t> loads = {0, 0};
      loads[static_cast<size_t>(busy)] = 2000;
      group.Report(1, 1, loads, {0, 0});
      for (RequestId id = 2; id < 10; ++id) {
        RequestSpec spec = PromptOf(id, id == 2 ? 900 : id == 3 ? 800 : 10);
        // These two enter, whatever they are worth.
        spec.priority = id <= 3 ? 1 : 0;
        ASSERT_TRUE(group.scheduler->Enqueue(spec).ok());
      }
      ASSERT_EQ(group.scheduler->MakePlan()->placements.size(), 5u);
      const auto second = group.scheduler->WorkerOf(2), third = group.scheduler->WorkerOf(3);
      ASSERT_TRUE(second.has_value() && third.has_value());
      EXPECT_EQ(*second == *third, weight == 0) << policy << ": by tokens both belong on the empty rank";
    }
  }
}

TEST(PrefillPieces, ThePlanSaysThemWhereAllRanksTakePromptsInPieces) {
  PlannedGroup group(4, {.pieces = true});
  group.PlaceOne(1, 2000);
  EXPECT_EQ(group.plan->prefill_piece, std::nullopt) << "nothing is known of the ranks yet";
  std::vector<int64_t> loads(4, 0), pending(4, 0);
  const auto busy = static_cast<size_t>(*group.scheduler->WorkerOf(1));
  loads[busy] = 2000;
  pending[busy] = 1488;
  group.Report(1, 1, loads, pending);
  group.PlaceOne(2, 400);
  EXPECT_EQ(group.plan->prefill_piece, (1488 + 400) / 4);
  const auto other = static_cast<size_t>(*group.scheduler->WorkerOf(2));
  loads[busy] = 2001;
  loads[other] += 400;
  group.Report(2, 2, loads, {0, 0, 0, 0});
  EXPECT_EQ(group.scheduler->MakePlan()->prefill_piece, std::nullopt) << "there is nothing to bound";
  for (const size_t g : {busy, other}) ++loads[g];
  group.Report(3, 3, loads, {});
  group.PlaceOne(3, 400);
  EXPECT_EQ(group.plan->prefill_piece, std::nullopt) << "these take prompts whole";
}

TEST(PrefillPieces, WhatBeginsInThePlansStepHasNotBeenWorkedOff) {
  PlannedGroup group(2, {.pieces = true}, PlanMode::kPipelined);
  group.PlaceOne(1, 100);
  std::vector<int64_t> loads(2, 0);
  const auto busy = static_cast<size_t>(*group.scheduler->WorkerOf(1));
  loads[busy] = 100;
  group.Report(1, 1, loads, {0, 0});
  group.PlaceOne(2, 400);
  ASSERT_EQ(group.plan->apply_step, 3) << "a step is under way";
  EXPECT_EQ(group.plan->prefill_piece, 400 / 2);
}

TEST(PrefillPieces, NoneUnlessAskedFor) {
  PlannedGroup group(2, {.weight = 16});
  group.PlaceOne(1, 2000);
  std::vector<int64_t> loads(2, 0), pending(2, 0);
  const auto busy = static_cast<size_t>(*group.scheduler->WorkerOf(1));
  loads[busy] = 2000;
  pending[busy] = 1488;
  group.Report(1, 1, loads, pending);
  group.PlaceOne(2, 400);
  EXPECT_EQ(group.plan->prefill_piece, std::nullopt);
}

TEST(PrefillReports, NegativeOnesAreRefused) {
  PlannedGroup group(1, {});
  StepReport report;
  report.step = 1;
  report.prefill = {-1, 512};
  EXPECT_EQ(group.scheduler->OnReport(0, report).code(), absl::StatusCode::kInvalidArgument);
}

// Ranks that take prompts in pieces, oldest first, as sarathi does.
class PieceRank {
 public:
  explicit PieceRank(int64_t budget) : budget_(budget) {}

  void Start(RequestId id, int64_t prompt, int64_t output) {
    runs_.push_back({id, prompt, prompt, output, 0});
  }
  int64_t pending() const {
    int64_t pending = 0;
    for (const Run& run : runs_) pending += run.left;
    return pending;
  }
  bool idle() const { return runs_.empty(); }

  // Who has ended; what the requests counted goes to `load`, the prompt tokens it took to `took`.
  std::vector<RequestId> Step(std::optional<int64_t> piece, int64_t& load, int64_t& took) {
    const int64_t decodes =
        std::count_if(runs_.begin(), runs_.end(), [](const Run& run) { return run.left == 0; });
    int64_t room = std::max(budget_ - decodes, kLeastPrefillRows);
    if (piece) room = std::min(room, *piece);
    std::vector<RequestId> ended;
    load = took = 0;
    for (Run& run : runs_) {
      load += run.prompt + run.made;
      const int64_t rows = std::min(run.left, room - took);
      const bool decodes_now = run.left == 0;
      run.left -= rows;
      took += rows;
      if (decodes_now || (rows > 0 && run.left == 0)) ++run.made;
      if (run.made == run.output) ended.push_back(run.id);
    }
    std::erase_if(runs_, [](const Run& run) { return run.made == run.output; });
    return ended;
  }

 private:
  struct Run {
    RequestId id;
    int64_t prompt, left, output, made;
  };
  const int64_t budget_;
  std::vector<Run> runs_;
};

// Random traffic through four ranks: every plan's piece is the mean of what the ranks truly have to compute
// when its step begins, and no rank ever takes more.
TEST(PrefillPiecesProperty, PiecesAreTheMeanOfWhatRanksTrulyHaveToComputeAndBindThem) {
  constexpr int32_t kPieceRanks = 4;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    PlannedGroup group(kPieceRanks, {.weight = 16, .pieces = true});
    std::vector<PieceRank> ranks(kPieceRanks, PieceRank(256));
    std::map<RequestId, std::pair<int64_t, int64_t>> lengths;
    RequestId next = 1;
    int64_t bounded = 0;
    bool told = false;
    for (int64_t step = 1; step <= 300 || group.scheduler->placed() + group.scheduler->waiting() > 0;) {
      ASSERT_LT(step, 5000);
      if (step <= 300 && rng.Below(4) == 0) {
        lengths[next] = {1 + static_cast<int64_t>(rng.Below(1500)), 1 + static_cast<int64_t>(rng.Below(50))};
        ASSERT_TRUE(group.scheduler->Enqueue(PromptOf(next, lengths[next].first)).ok());
        ++next;
      }
      const auto plan = group.scheduler->MakePlan();
      if (!plan) {
        if (step > 300) break;
        lengths[next] = {500, 5};
        ASSERT_TRUE(group.scheduler->Enqueue(PromptOf(next++, 500)).ok());
        continue;
      }
      ASSERT_EQ(plan->apply_step, step);
      for (const Placement& p : plan->placements)
        ranks[static_cast<size_t>(p.worker)].Start(p.id, lengths[p.id].first, lengths[p.id].second);
      std::vector<int64_t> pending;
      for (const PieceRank& rank : ranks) pending.push_back(rank.pending());
      if (told) {
        EXPECT_EQ(plan->prefill_piece, EqualPiece(pending));
      }
      told = true;
      std::vector<std::vector<RequestId>> ended;
      std::vector<StepReport> reports(kPieceRanks);
      bool idle = true;
      for (size_t g = 0; g < kPieceRanks; ++g) {
        int64_t took = 0;
        ended.push_back(ranks[g].Step(plan->prefill_piece, reports[g].load_tokens, took));
        if (plan->prefill_piece) {
          EXPECT_LE(took, *plan->prefill_piece);
          bounded += took == *plan->prefill_piece;
        }
        reports[g].step = reports[g].applied_plan = step;
        reports[g].prefill = {ranks[g].pending(), 256};
        idle = idle && ranks[g].idle();
      }
      for (size_t g = 0; g < kPieceRanks; ++g) {
        reports[g].finished = ended[g];
        reports[g].group_idle = idle;
        ASSERT_TRUE(group.scheduler->OnReport(static_cast<WorkerIndex>(g), reports[g]).ok());
      }
      ++step;
    }
    EXPECT_GT(bounded, 20);
  }
}

}  // namespace
}  // namespace bfio::core
