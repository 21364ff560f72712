#include "tools/loadgen/rate_profile.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RatesTest, ListsAndRangesAreParsed) {
  EXPECT_THAT(*ParseRates("5"), ElementsAre(5));
  EXPECT_THAT(*ParseRates("5,2.5,20"), ElementsAre(5, 2.5, 20));
  EXPECT_THAT(*ParseRates("10:40:15"), ElementsAre(10, 25, 40));
  EXPECT_THAT(*ParseRates("10:39:15"), ElementsAre(10, 25));
  EXPECT_EQ(ParseRates("0.1:0.3:0.1")->size(), 3u) << "rounding must not lose the end";
  EXPECT_EQ(ParseRates("1:200:1")->size(), kMostLevels);
}

TEST(RatesTest, InvalidRatesAreNamed) {
  for (const char* text : {"", "x", "1,", "0", "-1", "nan", "inf", "1:2", "1:2:3:4", "2:1:1", "1:2:0",
                           "1:201:1", "1:1e300:1e-300"}) {
    const auto rates = ParseRates(text);
    EXPECT_EQ(rates.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(rates.status().message()), HasSubstr("--rates")) << text;
  }
}

std::vector<ProfileArrivals::Arrival> All(std::vector<RateLevel> levels, double burstiness, uint64_t seed) {
  auto arrivals = ProfileArrivals::Create(std::move(levels), burstiness, seed);
  EXPECT_TRUE(arrivals.ok()) << arrivals.status();
  std::vector<ProfileArrivals::Arrival> all;
  while (const auto arrival = arrivals->Next()) all.push_back(*arrival);
  EXPECT_FALSE(arrivals->Next().has_value()) << "the end stays the end";
  return all;
}

// So large a shape of the gamma distribution makes arrivals even: arrival i comes when i + 1 arrivals are
// expected, to within a thousandth.
constexpr double kEven = 1e8;

TEST(ProfileArrivalsTest, EachLevelHasItsRate) {
  const auto all = All(StepLevels({10, 40}, 5), kEven, 1);
  ASSERT_NEAR(static_cast<double>(all.size()), 250, 1);
  for (size_t i = 0; i < all.size(); ++i) {
    const double expected = static_cast<double>(i + 1);
    const double at = all[i].level * 5 + all[i].offset_s;
    EXPECT_NEAR(at, expected <= 50 ? expected / 10 : 5 + (expected - 50) / 40, 0.01) << i;
    EXPECT_GE(all[i].offset_s, 0);
    EXPECT_LE(all[i].offset_s, 5);
  }
}

TEST(ProfileArrivalsTest, ARampRisesLinearlyAndMayFall) {
  for (const bool up : {true, false}) {
    const auto all = All(up ? RampLevels(0, 20, 10) : RampLevels(20, 0, 10), kEven, 1);
    ASSERT_NEAR(static_cast<double>(all.size()), 100, 1);
    for (size_t i = 0; i < all.size(); ++i) {
      const double at = all[i].level * 1.0 + all[i].offset_s;
      const double before = up ? at * at : 100 - (10 - at) * (10 - at);  // expected number until then
      EXPECT_NEAR(before, static_cast<double>(i + 1), 0.05) << up << " " << i;
    }
  }
}

TEST(ProfileArrivalsTest, TimesAscendAndTheSeedRepeatsThem) {
  const auto a = All(StepLevels({50, 5, 100, 0.001, 20}, 3), 0.5, 7);
  const auto b = All(StepLevels({50, 5, 100, 0.001, 20}, 3), 0.5, 7);
  ASSERT_EQ(a.size(), b.size());
  uint32_t level = 0;
  double offset = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].offset_s, b[i].offset_s);
    ASSERT_GE(a[i].level, level);
    EXPECT_TRUE(a[i].level > level || a[i].offset_s >= offset) << i;
    level = a[i].level;
    offset = a[i].offset_s;
  }
  EXPECT_EQ(level, 4u);
}

Trace OneRow() {
  return {.source = "one", .format = "generic", .requests = {{0, 10, 1}}};
}

TEST(ProfileScheduleTest, StepTimesCountFromTheStartAndSweepTimesFromTheLevel) {
  for (const bool sweep : {false, true}) {
    const Options options = {.arrival = sweep ? "sweep" : "step", .rates = {50, 100}, .step_duration_s = 2};
    ASSERT_TRUE(Validate(options).ok()) << Validate(options);
    auto schedule = Schedule::Create(options, OneRow());
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_EQ(schedule->total(), 0u);
    uint64_t count[2] = {0, 0};
    while (const auto planned = schedule->Next()) {
      ASSERT_LT(planned->level, 2u);
      ++count[planned->level];
      const double from = sweep ? 0 : 2.0 * planned->level;
      EXPECT_GE(planned->due_s, from);
      EXPECT_LE(planned->due_s, from + 2);
    }
    EXPECT_NEAR(static_cast<double>(count[0]), 100, 40);
    EXPECT_NEAR(static_cast<double>(count[1]), 200, 60);
    EXPECT_EQ(options.due_end_s(), sweep ? 0 : 4);
  }
}

TEST(ProfileOptionsTest, InvalidOptionsNameTheFlag) {
  const struct {
    Options options;
    const char* flag;
  } kCases[] = {
      {{.arrival = "ramp", .rate = 1, .rate_to = 2}, "--duration"},
      {{.arrival = "ramp", .duration_s = 5}, "--rate_to"},
      {{.arrival = "ramp", .rate = 2, .rate_to = 2, .duration_s = 5}, "--rate_to"},
      {{.arrival = "ramp", .rate = 2, .rate_to = -1, .duration_s = 5}, "--rate_to"},
      {{.arrival = "ramp", .rate = 1, .rate_to = 2, .rates = {1}, .duration_s = 5}, "--rates"},
      {{.arrival = "ramp", .rate = 1, .rate_to = 2, .requests = 9, .duration_s = 5}, "--requests"},
      {{.arrival = "poisson", .rate = 1, .rate_to = 2}, "--rate_to"},
      {{.arrival = "closed", .rates = {1}}, "--rates"},
      {{.arrival = "step"}, "--rates"},
      {{.arrival = "step", .rate = 1, .rates = {1}}, "--rate "},
      {{.arrival = "step", .time_scale = 2, .rates = {1}}, "--time_scale"},
      {{.arrival = "step", .rates = {1}, .duration_s = 3}, "--duration"},
      {{.arrival = "step", .rates = {1}, .step_duration_s = 0}, "--step_duration"},
      {{.arrival = "sweep", .rates = {2, 1}}, "ascend"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = Validate(c.options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.flag;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.flag));
  }
  EXPECT_TRUE(Validate({.arrival = "step", .burstiness = 0.5, .rates = {2, 1}}).ok());
  EXPECT_TRUE(Validate({.arrival = "ramp", .rate = 9, .duration_s = 5}).ok()) << "falls to 0";
}

}  // namespace
}  // namespace bfio::loadgen
