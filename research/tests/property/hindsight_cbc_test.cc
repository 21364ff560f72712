// The best schedule in hindsight: the integer program, solved by CBC, against the search.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "common/base/rng.h"
#include "research/admission/hindsight.h"
#include "research/solver/cbc.h"

namespace bfio::sim {
namespace {

constexpr double kHindsightSeconds = 30;

class HindsightCbcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::HaveCbc()) GTEST_SKIP() << "no cbc on the path (Debian: coinor-cbc)";
  }
};

// The total latency of CBC's optimal schedule.
int64_t ByCbc(const std::vector<KvArrival>& arrivals, const AdmissionOptions& options, int64_t horizon) {
  const auto answer = testing::RunCbc(HindsightLp(arrivals, options, horizon), kHindsightSeconds);
  EXPECT_TRUE(answer.ok()) << answer.status();
  if (!answer.ok()) return -1;
  EXPECT_TRUE(answer->optimal);
  std::vector<int64_t> began(arrivals.size(), -1);
  for (const auto& [name, value] : answer->values) {
    int request = 0, start = 0;
    if (value < 0.5 || std::sscanf(name.c_str(), "x_%d_%d", &request, &start) != 2) continue;
    began[static_cast<size_t>(request)] = start;
  }
  const auto latency = ScheduleLatency(arrivals, options, began);
  EXPECT_TRUE(latency.has_value()) << "a schedule that memory does not carry";
  return latency.value_or(-1);
}

void Agree(const std::vector<KvArrival>& arrivals, const AdmissionOptions& options) {
  const auto best = HindsightOptimum(arrivals, options, 10'000'000);
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(ScheduleLatency(arrivals, options, best->began), best->total_latency);
  EXPECT_EQ(ByCbc(arrivals, options, HindsightHorizon(arrivals, best->total_latency)), best->total_latency);
}

TEST_F(HindsightCbcTest, TheCounterexamples) {
  const auto together = [](int64_t prompt, const std::vector<int64_t>& outputs) {
    std::vector<KvArrival> arrivals;
    for (const int64_t output : outputs) arrivals.push_back({0, prompt, output});
    return arrivals;
  };
  AdmissionOptions options;
  options.memory = 6;
  EXPECT_EQ(ByCbc(together(1, {2, 2, 3, 3}), options, 12), 16);
  EXPECT_EQ(ByCbc(together(1, {2, 2, 3, 4, 4}), options, 18), 28);
  options.memory = 9;
  EXPECT_EQ(ByCbc(together(2, std::vector<int64_t>(6, 2)), options, 12), 27);
}

TEST_F(HindsightCbcTest, CbcAndTheSearchAgree) {
  for (const bool counts_first_round : {true, false}) {
    for (const bool online : {false, true}) {
      Rng rng(online ? 3 : 4);
      for (int trial = 0; trial < 3; ++trial) {
        AdmissionOptions options;
        options.counts_first_round = counts_first_round;
        options.memory = 7 + static_cast<int64_t>(rng.Below(6));
        std::vector<KvArrival> arrivals;
        double at = 0;
        for (int i = 0; i < 5; ++i) {
          if (online) at += std::floor(2 * rng.Exponential());
          arrivals.push_back(
              {at, 1 + static_cast<int64_t>(rng.Below(2)), 1 + static_cast<int64_t>(rng.Below(5))});
        }
        ASSERT_NO_FATAL_FAILURE(Agree(arrivals, options)) << "trial " << trial << " online " << online;
      }
    }
  }
}

}  // namespace
}  // namespace bfio::sim
