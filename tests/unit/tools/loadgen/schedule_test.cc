#include "tools/loadgen/schedule.h"

#include <utility>
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

std::vector<PlannedRequest> All(const Options& options, Trace trace = ThreeRows()) {
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

TEST(ScheduleTest, ATraceIsReplayedOnceOrRepeatedUntilTheNumberOfRequests) {
  const auto once = All({.trace = "x", .arrival = "trace", .time_scale = 2});
  ASSERT_EQ(once.size(), 3u);
  EXPECT_EQ(once[2].due_s, 2);
  EXPECT_EQ(once[2].prompt_tokens, 30u);
  EXPECT_EQ(once[2].output_tokens, 3u);
  const auto repeated = All({.trace = "x", .arrival = "trace", .requests = 5});
  ASSERT_EQ(repeated.size(), 5u);
  EXPECT_EQ(repeated[3].prompt_tokens, 10u);
  EXPECT_EQ(repeated[3].due_s, 6);
  EXPECT_EQ(repeated[4].due_s, 7);
  Trace no_times = ThreeRows();
  no_times.has_arrivals = false;
  EXPECT_EQ(Schedule::Create({.trace = "x", .arrival = "trace"}, no_times).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ScheduleTest, RequestsOrDurationEndAnOpenLoopWhicheverIsFirst) {
  EXPECT_EQ(All({.trace = "x", .arrival = "trace", .duration_s = 4}).size(), 2u) << "4 s is the end";
  const auto planned = All({.arrival = "poisson", .rate = 100, .duration_s = 20});
  EXPECT_NEAR(static_cast<double>(planned.size()), 2000, 200);
  EXPECT_LT(planned.back().due_s, 20);
  EXPECT_EQ(All({.arrival = "poisson", .rate = 100, .requests = 7, .duration_s = 20}).size(), 7u);
  EXPECT_TRUE(All({.arrival = "poisson", .rate = 1e-6, .requests = 7, .duration_s = 1}).empty());
}

TEST(OptionsTest, InvalidOptionsNameTheFlag) {
  const struct {
    Options options;
    const char* flag;
  } kCases[] = {
      {{.arrival = "uniform"}, "--arrival"},
      {{.arrival = "poisson"}, "--rate"},
      {{.arrival = "closed", .rate = 1}, "--rate"},
      {{.arrival = "closed", .time_scale = 2}, "--time_scale"},
      {{.arrival = "poisson", .rate = 1, .burstiness = 2}, "--burstiness"},
      {{.arrival = "trace"}, "--trace"},
      {{.trace = "x", .profile = "code"}, "--profile"},
      {{.target = "router"}, "--target"},
      {{.admin = "router"}, "--admin"},
      {{.json = "/nowhere/x"}, "--json"},
      {{.report = "/nowhere/x"}, "--html"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Validate(c.options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.flag;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.flag));
  }
}

}  // namespace
}  // namespace bfio::loadgen
