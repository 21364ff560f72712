// Requests that an engine refuses, and one that it forgets.
#include <vector>

#include "common/base/retry_delay.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_rank.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RefusalTest : public EngineRankTest {
 protected:
  // How long the rank keeps a request that it is given and the engine refuses.
  absl::Duration KeptFor(const absl::Status& why) {
    const CallNumber call = out_.start.empty() ? 1 : out_.start.back().number + 1;
    Plan({7});
    Reports();
    rank_.OnFailed(call, why, now_, out_);
    const absl::Time start = now_;
    for (std::vector<StepReport> reports; now_ - start < absl::Minutes(1); reports = Reports()) {
      for (const StepReport& report : reports) {
        if (report.rejected.empty()) continue;
        EXPECT_TRUE(absl::IsResourceExhausted(report.rejected[0].status));
        EXPECT_TRUE(report.group_idle);
        return now_ - start;
      }
      EXPECT_EQ(rank_.active(), 1) << "it keeps its slot";
      Wait(rank_.next_deadline() - now_);
    }
    return absl::InfiniteDuration();
  }
};

TEST_F(RefusalTest, ARefusedRequestWaitsLongerEachTime) {
  Epoch(1);
  const absl::Status full = absl::ResourceExhaustedError("full");
  for (absl::Duration expected = EngineRank::kShortestRefusal; refusals_ < 5; ++refusals_, expected *= 2)
    EXPECT_EQ(KeptFor(full), expected) << refusals_;
  refusals_ = 1'000'000'000;
  EXPECT_EQ(KeptFor(absl::UnavailableError("gone")), EngineRank::kLongestRefusal);
}

TEST_F(RefusalTest, TheEngineMaySayHowLong) {
  Epoch(1);
  absl::Status full = absl::ResourceExhaustedError("full");
  SetRetryDelay(full, absl::Seconds(3));
  EXPECT_EQ(KeptFor(full), absl::Seconds(3));
  SetRetryDelay(full, absl::Hours(3));
  EXPECT_EQ(KeptFor(full), EngineRank::kLongestRetryInfo);
}

// Its prompt is not being computed, and the engine does not have it.
TEST_F(RefusalTest, ARefusedRequestIsNoneOfTheEngines) {
  rank_ = EngineRank({.slots = 8});
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  absl::Status full = absl::ResourceExhaustedError("full");
  SetRetryDelay(full, absl::Seconds(5));
  rank_.OnFailed(2, full, now_, out_);
  Reports();
  for (int i = 0; i < 2; ++i, now_ += absl::Seconds(1)) rank_.OnLoad(EngineLoad{2, 100}, now_, out_);
  EXPECT_EQ(Reports().back().extra_slots, -1) << "another client's";
  EXPECT_EQ(rank_.next_deadline(), absl::UnixEpoch() + absl::Seconds(5)) << "a decode that stalls is silent";
  // The router may cancel it.
  Plan({}, {8});
  EXPECT_EQ(rank_.next_deadline(), absl::InfiniteFuture());
  EXPECT_EQ(rank_.active(), 1);
}

// The rank goes on, so that it is not cut off.
TEST_F(RefusalTest, ARequestThatTheEngineForgetsGoesOnElsewhere) {
  max_new_tokens_ = 10'000;
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  Token(2, 200);
  const auto step = [&](absl::Duration took) {
    now_ += took;
    Token(1, 101);
    Wait(EngineRank::kLongestGather);
    std::vector<core::RequestId> preempted;
    for (const StepReport& report : Reports())
      preempted.insert(preempted.end(), report.preempted.begin(), report.preempted.end());
    return preempted;
  };
  EXPECT_THAT(step(2 * EngineRank::kLongestQuiet), IsEmpty()) << "the other one may be as late";
  for (int64_t i = 2; i < EngineRank::kSilentSteps; ++i) ASSERT_THAT(step(absl::Milliseconds(50)), IsEmpty());
  EXPECT_THAT(out_.cancel, IsEmpty());
  std::vector<core::RequestId> preempted;
  for (int i = 0; i < 3 && preempted.empty(); ++i) preempted = step(absl::Milliseconds(50));
  EXPECT_THAT(preempted, ElementsAre(8));
  EXPECT_THAT(out_.cancel, ElementsAre(2));
  EXPECT_EQ(rank_.active(), 1);
}

TEST_F(RefusalTest, StepsAloneAreNoSignThatItIsForgotten) {
  max_new_tokens_ = 10'000;
  Epoch(1);
  Plan({7, 8});
  Token(1, 100);
  Token(2, 200);
  for (int64_t i = 0; i < 10 * EngineRank::kSilentSteps; ++i) {
    now_ += absl::Milliseconds(50);
    Token(1, 101);
  }
  EXPECT_THAT(out_.cancel, IsEmpty()) << "the engine may compute it again: it has preempted it";
}

}  // namespace
}  // namespace bfio::router
