// The one-worker simulator: memory is never exceeded where lengths are known or bounded, and no request is
// lost.
#include "research/admission/one_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "research/admission/lengths.h"

namespace bfio::sim {
namespace {

std::vector<KvArrival> RandomArrivals(Rng& rng, int64_t memory, int count, int64_t error) {
  std::vector<KvArrival> arrivals;
  double at = 0;
  for (int i = 0; i < count; ++i) {
    at += std::floor(rng.Exponential() * 2);
    KvArrival arrival;
    arrival.at = at;
    arrival.prompt = static_cast<int64_t>(rng.Below(6));
    arrival.output =
        1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(memory - 2 * error - arrival.prompt)));
    if (error > 0) {
      arrival.believed = std::max<int64_t>(
          1, arrival.output - error + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(2 * error + 1))));
    }
    arrivals.push_back(arrival);
  }
  return arrivals;
}

// Peak of the tokens that the schedule holds; a request counts from its begin to its end, both included.
int64_t PeakOf(const std::vector<KvArrival>& arrivals, const KvRun& run) {
  std::vector<int64_t> used;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const auto began = static_cast<size_t>(run.began[i]);
    used.resize(std::max(used.size(), began + static_cast<size_t>(arrivals[i].output) + 1));
    for (int64_t t = 0; t <= arrivals[i].output; ++t)
      used[began + static_cast<size_t>(t)] += arrivals[i].prompt + t;
  }
  return used.empty() ? 0 : *std::max_element(used.begin(), used.end());
}

TEST(OneWorker, KnownLengthsNeverExceedMemory) {
  // Number of instances per rule.
  constexpr std::pair<const char*, uint64_t> kRules[] = {
      {"mc_sf", 100'000}, {"mc_fcfs", 10'000}, {"mc_sf_paced", 10'000}};
  for (const auto& [rule, instances] : kRules) {
    for (uint64_t seed = 1; seed <= instances; ++seed) {
      Rng rng(seed);
      const auto memory = static_cast<int64_t>(12 + rng.Below(40));
      const std::vector<KvArrival> arrivals =
          RandomArrivals(rng, memory, 1 + static_cast<int>(rng.Below(12)), 0);
      KvRunOptions options;
      options.rule.memory = memory;
      const auto run = RunOneWorker(rule, arrivals, options);
      ASSERT_TRUE(run.ok()) << run.status();
      ASSERT_EQ(run->completed, static_cast<int64_t>(arrivals.size())) << rule << " " << seed;
      ASSERT_EQ(run->preemptions, 0) << rule << " " << seed;
      ASSERT_LE(PeakOf(arrivals, *run), memory) << rule << " " << seed;
      for (size_t i = 0; i < arrivals.size(); ++i) {
        ASSERT_GE(run->began[i], arrivals[i].at);
        ASSERT_EQ(run->done[i], run->began[i] + static_cast<double>(arrivals[i].output));
      }
    }
  }
}

TEST(OneWorker, AMarginOfThePredictionErrorIsSafeAndNoMarginIsNot) {
  // The paper's text uses the lower bound o_hat - delta; safety needs the upper bound o_hat + delta.
  int64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 2'000; ++seed) {
    Rng rng(seed);
    const auto memory = static_cast<int64_t>(24 + rng.Below(40));
    const std::vector<KvArrival> arrivals = RandomArrivals(rng, memory, 10, 4);
    KvRunOptions options;
    options.rule.memory = memory;
    const auto safe = RunOneWorker("mc_sf:margin=4", arrivals, options);
    ASSERT_TRUE(safe.ok()) << safe.status();
    ASSERT_EQ(safe->completed, 10);
    ASSERT_EQ(safe->preemptions, 0) << seed;
    ASSERT_LE(PeakOf(arrivals, *safe), memory) << seed;
    const auto bold = RunOneWorker("mc_sf", arrivals, options);
    ASSERT_EQ(bold->completed, 10) << "what is thrown out comes back";
    ASSERT_FALSE(bold->looped);
    preemptions += bold->preemptions;
  }
  EXPECT_GT(preemptions, 0) << "without a margin memory runs over";
}

TEST(OneWorker, EveryRequestEndsForAnyPredictedLengths) {
  // Predictions from 1 token to four times the true length, lookaheads without observations, and requests
  // that need all of the memory. Rules that preempt must not loop: the request that has run longest always
  // continues.
  int64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Rng rng(seed);
    const auto memory = static_cast<int64_t>(16 + rng.Below(100));
    std::vector<KvArrival> arrivals = RandomArrivals(rng, memory, 30, 0);
    for (KvArrival& arrival : arrivals) {
      arrival.most = memory - arrival.prompt;
      arrival.believed = 1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(4 * arrival.output)));
    }
    for (const char* rule :
         {"mc_sf", "mc_sf_paced", "mc_fcfs", "mc_sf:margin=3", "watermark", "watermark:share=0.3,block=1"}) {
      for (const char* lookahead : {"", "survival", "max_tokens"}) {
        std::unique_ptr<Lengths> lengths;
        if (*lookahead != '\0')
          lengths = std::make_unique<LookaheadLengths>(*core::MakeLookahead(lookahead), 0.8);
        KvRunOptions options;
        options.rule.memory = memory;
        options.rule.lengths = lengths.get();
        options.loop_rounds = 10 * memory;
        const auto run = RunOneWorker(rule, arrivals, options);
        ASSERT_TRUE(run.ok()) << run.status();
        ASSERT_FALSE(run->looped) << rule << " " << lookahead << " seed " << seed;
        ASSERT_EQ(run->completed, 30) << rule << " " << lookahead << " seed " << seed;
        ASSERT_EQ(run->evictions, 0);
        preemptions += run->preemptions;
        if (*lookahead == 'm' && rule[0] == 'm') {
          ASSERT_EQ(run->preemptions, 0) << "limits are never outlived";
        }
      }
    }
  }
  EXPECT_GT(preemptions, 300);
}

TEST(OneWorker, ThePaceFollowsActualLengthsNotTheirLimits) {
  // All requests have the same limit, ten times their mean output: a pace computed from the limit would leave
  // most of the memory empty.
  double latency[2] = {};
  for (const bool paced : {false, true}) {
    std::vector<KvArrival> arrivals;
    Rng rng(5);
    for (int i = 0; i < 3'000; ++i) {
      const int64_t output = 1 + std::min<int64_t>(399, static_cast<int64_t>(rng.Exponential() * 40));
      arrivals.push_back({i * 0.5, 10, output, 400, 400});
    }
    KvRunOptions options;
    options.rule.memory = 6'000;
    latency[paced] = RunOneWorker(paced ? "mc_sf_paced" : "mc_sf", arrivals, options)->mean_latency;
  }
  EXPECT_LE(latency[1], 1.05 * latency[0]);
}

TEST(OneWorker, APreemptedRequestResumesWithItsGeneratedTokens) {
  KvRunOptions options;
  options.rule.memory = 20;
  // Prompts of 4 tokens and 8 output tokens each; predicted are 4 for the first and 8 for the second. At
  // round 7 they hold 11 + 11 tokens.
  const auto run = RunOneWorker("mc_sf", {{0, 4, 8, 4}, {0, 4, 8, 8}}, options);
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->preemptions, 1);
  EXPECT_EQ(run->repeated_tokens, 11);
  EXPECT_EQ(run->done, (std::vector<double>{8, 10}))
      << "at 8 the other still holds its memory; one token is left";
}

TEST(OneWorker, SurvivalLearnsToKeepWithinMemory) {
  // Geometric lengths: a lower confidence causes more preemptions.
  std::vector<KvArrival> arrivals;
  Rng rng(3);
  for (int i = 0; i < 2'000; ++i) {
    const int64_t output = 1 + std::min<int64_t>(399, static_cast<int64_t>(rng.Exponential() * 40));
    arrivals.push_back({i * 0.8, 10, output, 0, 400});
  }
  std::vector<int64_t> preemptions;
  for (const double confidence : {0.1, 0.5, 0.9, 0.99}) {
    LookaheadLengths lengths(*core::MakeLookahead("survival"), confidence);
    KvRunOptions options;
    options.rule.memory = 3'000;
    options.rule.lengths = &lengths;
    const auto run = RunOneWorker("mc_fcfs", arrivals, options);
    ASSERT_TRUE(run.ok());
    EXPECT_EQ(run->completed, 2'000);
    preemptions.push_back(run->preemptions);
  }
  EXPECT_GT(preemptions[0], 4 * preemptions[2]) << ::testing::PrintToString(preemptions);
  EXPECT_GT(preemptions[1], preemptions[3]);
  EXPECT_EQ(preemptions[3], 0);
}

TEST(OneWorker, RoundsTakeTheTimeOfTheirTokens) {
  KvRunOptions options;
  options.rule.memory = 100;
  options.round_seconds = [](int64_t tokens) { return 0.1 * static_cast<double>(tokens); };
  // A round with 10 prompt tokens and then two rounds with one token.
  const auto run = RunOneWorker("mc_sf", {{1, 10, 3}}, options);
  ASSERT_TRUE(run.ok());
  EXPECT_NEAR(run->done[0], 1 + 1.0 + 0.1 + 0.1, 1e-9);
  EXPECT_NEAR(run->mean_latency, 1.2, 1e-9);
}

TEST(OneWorker, ARequestThatCanNeverFitIsRefused) {
  KvRunOptions options;
  options.rule.memory = 10;
  EXPECT_EQ(RunOneWorker("mc_sf", {{0, 5, 6}}, options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bfio::sim
