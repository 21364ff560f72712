// Reports of the prompt tokens that an engine found in its prefix cache.
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine_link/engine_rank.h"
#include "tests/unit/router/engine_link/engine_rank_fixture.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A rank that finds nothing is trusted less, so 0 is reported like any other number.
TEST_F(EngineRankTest, CachedTokensAreReportedOnceWithTheFirstToken) {
  Epoch(1);
  Plan({7, 8});
  Reports();
  rank_.OnCached(1, 6);
  rank_.OnTokens(1, {100}, nullptr, now_, out_);
  rank_.OnCached(2, 0);
  rank_.OnTokens(2, {200}, nullptr, now_, out_);
  const auto reported = [&] {
    std::vector<std::pair<core::RequestId, int64_t>> all;
    for (const StepReport& report : Reports())
      for (const core::CachedPrompt& cached : report.cached) all.emplace_back(cached.id, cached.tokens);
    return all;
  };
  Wait(absl::Seconds(1));
  EXPECT_THAT(reported(), UnorderedElementsAre(std::pair(7, 6), std::pair(8, 0)));
  // Every message of the engine repeats the number; it is reported only once.
  for (const CallNumber call : {1, 2}) {
    rank_.OnCached(call, 6);
    rank_.OnTokens(call, {101}, nullptr, now_, out_);
  }
  Wait(absl::Seconds(1));
  EXPECT_THAT(reported(), IsEmpty());
  // The number counts again when the request is placed again, on this or another rank.
  Plan({}, {7});
  Plan({7});
  rank_.OnCached(3, 1'000);
  rank_.OnTokens(3, {102}, nullptr, now_, out_);
  Wait(absl::Seconds(1));
  EXPECT_THAT(reported(), ElementsAre(std::pair(7, 10))) << "no more than its prompt";
}

TEST_F(EngineRankTest, CachedTokensOfAWholeOutputAreReportedAtItsEnd) {
  passed_.on = passed_.whole = true;
  Epoch(1);
  Plan({7});
  Reports();
  rank_.OnFinished(1, {EngineFinish::kStop, std::make_shared<AMessage>(), 3, 8}, now_, out_);
  Wait(absl::Seconds(1));
  const std::vector<StepReport> reports = Reports();
  ASSERT_FALSE(reports.empty());
  ASSERT_EQ(reports[0].cached.size(), 1u);
  EXPECT_EQ(reports[0].cached[0].id, 7u);
  EXPECT_EQ(reports[0].cached[0].tokens, 8);
  EXPECT_EQ(reports[0].prefix_cache_queries, 10) << "its prompt";
  EXPECT_EQ(reports[0].finished.size(), 1u);
}

}  // namespace
}  // namespace bfio::router
