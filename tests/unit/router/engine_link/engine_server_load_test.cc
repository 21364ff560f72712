// How a server's ranks learn of the engine's loads.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/engine_link/engine_server_fixture.h"

namespace bfio::router {
namespace {

TEST_F(EngineServerTest, RecordsReplaceQuestionsWhileTheyCome) {
  ServeTwoRanks();
  Check();
  ASSERT_EQ(asked_.records.size(), 1u);
  Answer(Loads{{4, {1, 10}}, {5, {2, 20}}});
  EXPECT_EQ(ReportedLoad(0), 1);
  EXPECT_EQ(ReportedLoad(1), 2);
  Record({{4, {3, 30}}, {5, {4, 40}}});
  EXPECT_EQ(ReportedLoad(0), 3);
  EXPECT_EQ(ReportedLoad(1), 4);
  Check();
  EXPECT_TRUE(asked_.loads.empty());
  Check();
  EXPECT_EQ(asked_.loads.size(), 1u) << "none has come since the last check";
  EXPECT_EQ(asked_.records.size(), 1u);
}

// vLLM's servicer repeats the record of one rank while no rank has events.
TEST_F(EngineServerTest, RanksWithoutRecordsAreAskedAbout) {
  ServeTwoRanks();
  Check();
  Answer(Loads{{4, {1, 10}}, {5, {2, 20}}});
  Record({{4, {3, 30}}, {0, {9, 90}}, {1'000, {9, 90}}, {-1, {9, 90}}});
  Check();
  Record({{4, {5, 50}}});
  Answer(Loads{{4, {6, 60}}, {5, {7, 70}}});
  EXPECT_EQ(ReportedLoad(0), 5) << "the record came after the question";
  EXPECT_EQ(ReportedLoad(1), 7);
}

TEST_F(EngineServerTest, AnEngineThatSendsNoRecordsIsAskedEveryTime) {
  ServeTwoRanks();
  Check();
  std::move(asked_.records.back()->callbacks.on_end)(absl::UnimplementedError("no events"));
  for (int64_t i = 0; i < 5; ++i) {
    Answer(Loads{{4, {i, 10}}, {5, {i, 20}}});
    EXPECT_EQ(ReportedLoad(1), i);
    Check();
  }
  EXPECT_EQ(asked_.records.size(), 1u) << "it has said that it does not";
}

TEST_F(EngineServerTest, RecordsThatEndAreSubscribedToAgain) {
  ServeTwoRanks();
  Check();
  std::move(asked_.records.back()->callbacks.on_end)(absl::DataLossError("a restarted publisher"));
  RunEvents();
  Answer(absl::UnimplementedError("no loads"));
  EXPECT_EQ(ReportedLoad(0), -1);
  Check();
  EXPECT_EQ(asked_.records.size(), 1u) << "at once";
  absl::SleepFor(EngineLink::kShortestRetry);
  Check();
  ASSERT_EQ(asked_.records.size(), 2u);
  Record({{5, {4, 40}}});
  EXPECT_EQ(ReportedLoad(1), 4);
  Check();
  EXPECT_EQ(ReportedLoad(1), 4);
  Check();
  EXPECT_EQ(ReportedLoad(1), -1) << "nothing has come of it for a while";
}

TEST_F(EngineServerTest, ALostServersRecordsAreCancelledAndIgnored) {
  ServeTwoRanks();
  Check();
  const std::shared_ptr<TestRecords> first = asked_.records.back();
  asked_.health = absl::UnavailableError("gone");
  Check();
  EXPECT_TRUE(first->cancelled);
  asked_.health = absl::OkStatus();
  channels_.clear();
  ServeTwoRanks();
  Check();
  ASSERT_EQ(asked_.records.size(), 2u);
  first->loads = {{4, {7, 70}}};
  first->callbacks.on_records();
  std::move(first->callbacks.on_end)(absl::UnimplementedError("late"));
  RunEvents();
  EXPECT_EQ(ReportedLoad(0), -1);
  Record({{4, {3, 30}}});
  EXPECT_EQ(ReportedLoad(0), 3);
  server_.reset();
  EXPECT_TRUE(asked_.records.back()->cancelled) << "a server that is forgotten";
}

}  // namespace
}  // namespace bfio::router
