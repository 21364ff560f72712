#include <gmock/gmock.h>

#include <cmath>

#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// By objective; "auto": bf_io_auto.
class BfIoTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::vector<int32_t> Decide(const PolicyCase& at_hand) {
    const std::string objective = GetParam();
    return objective == "auto" ? at_hand.Decide("bf_io_auto") : at_hand.Decide("bf_io", objective);
  }
};
INSTANTIATE_TEST_SUITE_P(Objectives, BfIoTest, ::testing::Values("square", "paper", "auto"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(BfIoTest, ChoosesTheRequestThatClosesTheGap) {
  const PolicyCase gap =
      PolicyCase().Worker(10'000, 0).Worker(4'000, 1).WaitingAll({300, 9'000, 6'000, 2'000});
  EXPECT_THAT(Decide(gap), ElementsAre(-1, -1, 1, -1));
}

TEST_P(BfIoTest, FillsEverySlotEvenWhenThatUnbalances) {
  const PolicyCase balanced = PolicyCase().Worker(5'000, 1).Worker(5'000, 0).WaitingAll({3'000});
  EXPECT_THAT(Decide(balanced), ElementsAre(0));
}

TEST(BfIoObjectives, TwoGapsGetTheirOwnRequestsEach) {
  const PolicyCase gaps = PolicyCase().Worker(9'000, 0).Worker(8'000, 1).Worker(4'000, 1).WaitingAll(
      {2'000, 5'000, 1'000, 9'000});
  for (const char* objective : {"square", "paper"})
    EXPECT_THAT(gaps.Decide("bf_io", objective), ElementsAre(-1, 2, 1, -1)) << objective;
}

TEST_P(BfIoTest, LowerPriorityNeverTakesTheSlotOfAHigherOne) {
  const PolicyCase classes = PolicyCase()
                                 .Worker(10'000, 0)
                                 .Worker(4'000, 1)
                                 .Waiting(300, 0, 300, /*priority=*/1)
                                 .Waiting(5'000, 0, 5'000, /*priority=*/1)
                                 .Waiting(6'000, 900'000, 6'000, /*priority=*/0);
  EXPECT_THAT(Decide(classes), ElementsAre(-1, 1, -1));
}

TEST_P(BfIoTest, NoSlotsOrAnEmptyPoolIsAnEmptyPlan) {
  EXPECT_THAT(Decide(PolicyCase().Worker(1, 0).Waiting(5)), ElementsAre(-1));
  EXPECT_TRUE(Decide(PolicyCase().Worker(1, 3)).empty());
}

TEST(BfIoSquareTest, AgeOutweighsAnyMisfitInTheEnd) {
  // The first request is far too large for the gap that the second closes exactly.
  const auto decide = [](int64_t age) {
    return PolicyCase()
        .Worker(100'000, 0)
        .Worker(99'000, 1)
        .Waiting(30'000, age)
        .Waiting(1'000)
        .Decide("bf_io");
  };
  EXPECT_THAT(decide(0), ElementsAre(-1, 1));
  EXPECT_THAT(decide(1'000), ElementsAre(1, -1));
}

TEST(BfIoSquareTest, BacklogThatDelaysAllAlikeMakesNoneOverdue) {
  const PolicyCase gap = PolicyCase().Worker(100'000, 0).Worker(99'000, 1);
  EXPECT_THAT(PolicyCase(gap).Waiting(30'000, 900'000).Waiting(1'000, 900'000).Decide("bf_io"),
              ElementsAre(-1, 1));
}

// Four workers with a load of 1,000 per slot; the least loaded one is reserved for the oversized request.
PolicyCase OversizedAmongSmall(int64_t prepared_load, int64_t age) {
  PolicyCase result = PolicyCase().Worker(50'000, 0, kAmpleKv, 50).Worker(50'000, 0, kAmpleKv, 50);
  result.Worker(50'000, 0, kAmpleKv, 50).Worker(prepared_load, 1, kAmpleKv, 50).Waiting(8'000, age);
  return result.WaitingAll({900, 1'400, 100, 1'000, 700, 1'100});
}

TEST(BfIoSquareTest, WorkerReservedForAnOversizedRequestGetsTheSmallest) {
  EXPECT_THAT(OversizedAmongSmall(49'000, /*age=*/13).Decide("bf_io"),
              ElementsAre(-1, -1, -1, 3, -1, -1, -1));
}

TEST(BfIoSquareTest, OversizedRequestEntersOnceItsWorkerIsLowEnough) {
  EXPECT_THAT(OversizedAmongSmall(42'000, /*age=*/13).Decide("bf_io"),
              ElementsAre(3, -1, -1, -1, -1, -1, -1));
}

TEST(BfIoSquareTest, DrainingWorkerDoesNotPullTheOthersDown) {
  // The third worker is nearly empty and takes no request; the gap is that of the second below the first.
  const PolicyCase draining = PolicyCase().Worker(60'000, 0).Worker(57'000, 1).Worker(2'000, 0);
  EXPECT_THAT(PolicyCase(draining).WaitingAll({100, 3'000, 6'000}).Decide("bf_io"), ElementsAre(-1, 1, -1));
}

// A draining worker does not count for the level, whatever its load: the gap is that of the second worker
// below the first, not below the mean of the first and the draining ones.
TEST(BfIoSquareTest, DrainingWorkerAboveHalfTheMedianIsNoPartOfTheLevel) {
  for (const int64_t held : {35'000, 90'000}) {
    PolicyCase draining = PolicyCase().Worker(60'000, 0).Worker(57'000, 1);
    draining.Worker(held, 0).Draining().Worker(held, 0).Draining();
    EXPECT_THAT(PolicyCase(draining).WaitingAll({100, 3'000, 6'000, 20'000}).Decide("bf_io"),
                ElementsAre(-1, 1, -1, -1))
        << held;
  }
}

// A snapshot that cannot come from the scheduler: all drain, yet one has a slot.
TEST(BfIoSquareTest, GroupInWhichAllDrainHasNoLevelAndStillAPlan) {
  const PolicyCase all = PolicyCase().Worker(10, 1).Draining().Worker(20, 0).Draining().WaitingAll({5});
  EXPECT_THAT(all.Decide("bf_io"), ElementsAre(0));
  EXPECT_THAT(all.Decide("bf_io_auto"), ElementsAre(0));
}

// Both gaps are equal now; the second worker loses most of its load in the next step. Each choice is right
// for the horizon that is used.
PolicyCase OneWorkerEmptiesSoon() {
  return PolicyCase()
      .Worker(10'000, 1, kAmpleKv, 10)
      .Worker(9'999, 0, kAmpleKv, 10)
      .Worker(10'000, 1, kAmpleKv, 10)
      .WaitingAll({3'000})
      .Ahead(1, {10'000, 10'010, 9'999, 10'009, 10'000, 4'000}, {1, 1});
}

std::vector<int32_t> DecideAhead(const char* objective, int32_t horizon, double discount = 1) {
  PolicyOptions options = {.horizon = horizon, .objective = objective, .discount = discount};
  return OneWorkerEmptiesSoon().Decide(**MakePolicy("bf_io", options));
}

TEST(BfIoHorizonTest, StepAheadDecidesWhatTodayLeavesOpen) {
  for (const char* objective : {"paper", "square"}) {
    EXPECT_THAT(DecideAhead(objective, 0), ElementsAre(0)) << objective;
    EXPECT_THAT(DecideAhead(objective, 1), ElementsAre(2)) << objective;
  }
}

TEST(BfIoHorizonTest, OutlookThatReachesFurtherThanThePolicyIsReadByItsOwnRows) {
  // Beyond the horizon of 1 the second worker is far above the first.
  const PolicyCase further =
      PolicyCase()
          .Worker(9'000, 1, kAmpleKv, 10)
          .Worker(10'000, 1, kAmpleKv, 10)
          .WaitingAll({1'000})
          .Ahead(3, {9'000, 10'000, 9'000, 90'000, 10'000, 8'900, 500'000, 90'000}, {1, 1, 1, 1});
  for (const char* objective : {"paper", "square"}) {
    PolicyOptions options = {.horizon = 1, .objective = objective};
    EXPECT_THAT(further.Decide(**MakePolicy("bf_io", options)), ElementsAre(1)) << objective;
    options.horizon = 3;
    EXPECT_THAT(further.Decide(**MakePolicy("bf_io", options)), ElementsAre(0)) << objective;
  }
}

// The first worker's load is lower now, the second worker's load is lower later.
TEST(BfIoHorizonTest, DiscountWeighsFutureSteps) {
  const PolicyCase tie = PolicyCase()
                             .Worker(9'000, 1, kAmpleKv, 10)
                             .Worker(10'000, 1, kAmpleKv, 10)
                             .WaitingAll({1'000})
                             .Ahead(1, {9'000, 10'000, 10'000, 8'900}, {1, 1});
  for (const char* objective : {"paper", "square"}) {
    PolicyOptions options = {.horizon = 1, .objective = objective};
    EXPECT_THAT(tie.Decide(**MakePolicy("bf_io", options)), ElementsAre(1)) << objective;
    options.discount = 0.5;
    EXPECT_THAT(tie.Decide(**MakePolicy("bf_io", options)), ElementsAre(0)) << objective;
  }
}

// Two requests that differ only in how long they will stay.
TEST(BfIoHorizonTest, ShortLivedOneGoesWhereLoadWillBeHighAnyway) {
  const auto decide = [](double ahead) {
    PolicyOptions options = {.horizon = 1};
    return PolicyCase()
        .Worker(10'000, 0, kAmpleKv, 10)
        .Worker(9'000, 1, kAmpleKv, 10)
        .Waiting(1'000)
        .Curve(0)
        .Waiting(1'000)
        .Curve(1)
        .Ahead(1, {10'000, 10'000, 9'000, ahead}, {1, 0, 1, 1})
        .Decide(**MakePolicy("bf_io", options));
  };
  EXPECT_THAT(decide(9'000), ElementsAre(-1, 1));
  EXPECT_THAT(decide(13'000), ElementsAre(1, -1));
}

TEST(RegistryTest, UnknownPolicyIsAnErrorThatNamesTheKnownOnes) {
  const auto policy = MakePolicy("fastest", {});
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(policy.status().message()), HasSubstr("'fastest' is unknown"));
  EXPECT_THAT(std::string(policy.status().message()), HasSubstr("least_tokens"));
}

TEST(RegistryTest, EveryListedPolicyIsMadeUnderItsOwnName) {
  for (const PolicyInfo& info : RegisteredPolicies())
    EXPECT_EQ((*MakePolicy(info.name, {}))->name(), info.name);
}

TEST(RegistryTest, OptionsOutOfRangeAreRefusedByName) {
  const auto refused = [](const PolicyOptions& options, const char* text) {
    const absl::Status status = MakePolicy("bf_io", options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  PolicyOptions options = {.horizon = 500};
  EXPECT_TRUE(MakePolicy("bf_io", options).ok());
  for (const int32_t horizon : {501, -1}) {
    options.horizon = horizon;
    refused(options, "must lie between 0 and 500");
  }
  options = {};
  for (const double discount : {0.0, -0.5, 1.01, std::nan("")}) {
    options.discount = discount;
    refused(options, "discount");
  }
  options = {};
  options.objective = "cube";
  refused(options, "objective 'cube' is unknown");
}

}  // namespace
}  // namespace bfio::core
