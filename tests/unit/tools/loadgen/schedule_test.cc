#include "tools/loadgen/schedule.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "tools/loadgen/options.h"

namespace bfio::loadgen {
namespace {

using ::testing::HasSubstr;

Trace ThreeRows() {
  return {.source = "three",
          .format = "generic",
          .has_arrivals = true,
          .requests = {{0, 10, 1}, {1, 20, 2}, {4, 30, 3}}};
}

std::vector<PlannedRequest> All(const Options& options, Trace trace) {
  auto schedule = Schedule::Create(options, std::move(trace));
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  std::vector<PlannedRequest> out;
  while (auto planned = schedule->Next()) {
    EXPECT_EQ(planned->index, out.size());
    out.push_back(*planned);
  }
  EXPECT_FALSE(schedule->Next().has_value()) << "the end stays the end";
  return out;
}

TEST(ScheduleTest, WithoutALimitATraceIsReplayedOnce) {
  const auto planned = All({.trace = "x", .arrival = "trace", .time_scale = 2}, ThreeRows());
  ASSERT_EQ(planned.size(), 3u);
  EXPECT_EQ(planned[2].due_s, 2);
  EXPECT_EQ(planned[2].prompt_tokens, 30u);
  EXPECT_EQ(planned[2].output_tokens, 3u);
}

TEST(ScheduleTest, MoreRequestsThanRowsRepeatTheTrace) {
  const auto planned = All({.trace = "x", .arrival = "trace", .requests = 5}, ThreeRows());
  ASSERT_EQ(planned.size(), 5u);
  EXPECT_EQ(planned[3].prompt_tokens, 10u);
  EXPECT_EQ(planned[3].due_s, 6);
  EXPECT_EQ(planned[4].due_s, 7);
}

TEST(ScheduleTest, TheDurationEndsAnOpenLoop) {
  EXPECT_EQ(All({.trace = "x", .arrival = "trace", .duration_s = 4}, ThreeRows()).size(), 2u)
      << "4 s is the end";
  const auto planned = All({.arrival = "poisson", .rate = 100, .duration_s = 20}, ThreeRows());
  EXPECT_NEAR(static_cast<double>(planned.size()), 2000, 200);
  EXPECT_LT(planned.back().due_s, 20);
}

TEST(ScheduleTest, RequestsOrDurationWhicheverIsFirst) {
  EXPECT_EQ(All({.arrival = "poisson", .rate = 100, .requests = 7, .duration_s = 20}, ThreeRows()).size(),
            7u);
  EXPECT_TRUE(All({.arrival = "poisson", .rate = 1e-6, .requests = 7, .duration_s = 1}, ThreeRows()).empty());
}

TEST(ScheduleTest, InClosedLoopNothingIsDueAtAFixedTime) {
  const auto planned = All({.requests = 4}, ThreeRows());
  ASSERT_EQ(planned.size(), 4u);
  for (const PlannedRequest& p : planned) EXPECT_EQ(p.due_s, 0);
}

TEST(ScheduleTest, ProfilesHaveADefaultLength) {
  auto trace = LoadTrace({});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->source, "conversation");
  EXPECT_EQ(All({}, *std::move(trace)).size(), 1000u);
  EXPECT_EQ(LoadTrace({.profile = "code", .requests = 12})->requests.size(), 12u);
}

TEST(ScheduleTest, SameSeedSameSchedule) {
  const Options options = {.arrival = "gamma", .rate = 10, .burstiness = 0.5, .requests = 50, .seed = 3};
  const auto a = All(options, ThreeRows()), b = All(options, ThreeRows());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].due_s, b[i].due_s);
}

TEST(ScheduleTest, ATraceWithoutTimesIsRefusedForTraceArrivals) {
  Trace trace = ThreeRows();
  trace.has_arrivals = false;
  EXPECT_EQ(Schedule::Create({.trace = "x", .arrival = "trace"}, trace).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(OptionsTest, ValidOptionsPass) {
  EXPECT_TRUE(Validate({}).ok());
  EXPECT_TRUE(Validate({.trace = "x", .arrival = "trace", .rate = 5, .time_scale = 2}).ok());
  EXPECT_TRUE(Validate({.arrival = "gamma", .rate = 5, .burstiness = 0.5}).ok());
}

TEST(OptionsTest, InvalidOptionsNameTheFlag) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    Options options;
    const char* flag;
  } kCases[] = {
      {{.arrival = "uniform"}, "--arrival"},
      {{.arrival = "poisson"}, "--rate"},
      {{.arrival = "poisson", .rate = -1}, "--rate"},
      {{.arrival = "poisson", .rate = nan}, "--rate"},
      {{.arrival = "closed", .rate = 1}, "--rate"},
      {{.arrival = "closed", .time_scale = 2}, "--time_scale"},
      {{.arrival = "poisson", .rate = 1, .time_scale = 0}, "--time_scale"},
      {{.arrival = "poisson", .rate = 1, .burstiness = 2}, "--burstiness"},
      {{.arrival = "gamma", .rate = 1, .burstiness = 0}, "--burstiness"},
      {{.arrival = "trace"}, "--trace"},
      {{.trace = "x", .profile = "code"}, "--profile"},
      {{.concurrency = 0}, "--concurrency"},
      {{.duration_s = -1}, "--duration"},
      {{.timeout = absl::ZeroDuration()}, "--timeout"},
      {{.connect_timeout = absl::Seconds(-1)}, "--connect_timeout"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Validate(c.options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.flag;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.flag));
  }
}

}  // namespace
}  // namespace bfio::loadgen
