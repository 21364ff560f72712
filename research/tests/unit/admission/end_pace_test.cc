// Limits of shortest-first: the pace of similar requests, and the bound on how often a request is passed.
#include "research/admission/end_pace.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "research/admission/admission_rule.h"
#include "research/admission/one_worker.h"

namespace bfio::sim {
namespace {

TEST(EndPace, OfSimilarRequestsNoMoreEndThanMemoryCarries) {
  // Requests of 10 prompt and 20 output tokens have area 420, so memory of 840 tokens supports two per step.
  EndPace pace;
  int64_t id = 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(pace.EndsTogether(100, 10, 20, 840));
    pace.Set(++id, 100, 30, 20);
  }
  EXPECT_TRUE(pace.EndsTogether(100, 10, 20, 840));
  EXPECT_FALSE(pace.EndsTogether(101, 10, 20, 840));
  EXPECT_FALSE(pace.EndsTogether(100, 10, 40, 840)) << "not similar";
  pace.Remove(1);
  EXPECT_FALSE(pace.EndsTogether(100, 10, 20, 840));
}

TEST(Aging, NoLaterRequestPassesOneThatHasWaitedForTheBound) {
  for (const char* rule : {"mc_sf", "mc_sf_paced"}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Rng rng(seed);
      constexpr int64_t kMost = 30, kMemory = 300, kLongest = 60;
      std::vector<KvArrival> arrivals;
      for (int i = 0; i < 400; ++i) {
        const int64_t output = rng.Below(8) == 0 ? kLongest : 1 + static_cast<int64_t>(rng.Below(10));
        arrivals.push_back({static_cast<double>(i / 2), static_cast<int64_t>(rng.Below(30)), output});
      }
      KvRunOptions options;
      options.rule.memory = kMemory;
      const auto run = RunOneWorker(absl::StrCat(rule, ":most=", kMost), arrivals, options);
      ASSERT_TRUE(run.ok()) << run.status();
      ASSERT_EQ(run->completed, 400);
      int64_t passed_before = 0;
      for (size_t i = 0; i < arrivals.size(); ++i) {
        for (size_t later = i + 1; later < arrivals.size(); ++later) {
          if (run->began[later] >= run->began[i]) continue;
          passed_before += 1;
          ASSERT_LT(run->began[later], arrivals[i].at + kMost) << rule << ", seed " << seed;
        }
        // The earlier requests run one after the other, each at most as long as the longest request.
        ASSERT_LE(run->began[i], arrivals[i].at + kMost + static_cast<double>(i + 1) * (kLongest + 1));
      }
      EXPECT_GT(passed_before, 0) << "shortest first";
    }
  }
}

}  // namespace
}  // namespace bfio::sim
