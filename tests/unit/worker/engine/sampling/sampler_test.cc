#include "worker/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "common/base/rng.h"
#include "gmock/gmock.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

Drawn Pick(const std::vector<float>& logits, const Sampling& sampling, int64_t index = 0,
           std::vector<uint32_t> ends = {}) {
  Sampler sampler;
  auto drawn = sampler.Pick(logits, {sampling, index, ends});
  EXPECT_TRUE(drawn.ok()) << drawn.status();
  return *drawn;
}

std::vector<float> RandomLogits(size_t size, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> logits;
  for (size_t i = 0; i < size; ++i) logits.push_back(static_cast<float>(3 * rng.Normal()));
  return logits;
}

// Relative frequencies of the drawn ids over the indices 0 .. draws - 1.
std::map<uint32_t, double> Frequencies(const std::vector<float>& logits, Sampling sampling, int draws) {
  std::map<uint32_t, double> share;
  Sampler sampler;
  for (int i = 0; i < draws; ++i) share[sampler.Pick(logits, {sampling, i, {}})->id] += 1.0 / draws;
  return share;
}

TEST(SamplerTest, GreedyTakesTheSmallestIdOfTheLargestLogits) {
  EXPECT_EQ(Pick({1, 5, 2, 5}, {}).id, 1u);
  EXPECT_EQ(Pick({-9}, {}).id, 0u);
}

TEST(SamplerTest, LogProbabilityDoesNotDependOnTheTemperature) {
  const std::vector<float> logits = {0, std::log(3.0f)};
  EXPECT_NEAR(Pick(logits, {}).log_probability, std::log(0.75), 1e-6);
  Sampling sharp = {.temperature = 0.01};
  EXPECT_NEAR(Pick(logits, sharp).log_probability, std::log(0.75), 1e-6);
}

TEST(SamplerTest, EndProbabilitySumsDistinctEndsAtTheDrawsTemperature) {
  const std::vector<float> logits = {0, 0, std::log(2.0f)};
  EXPECT_NEAR(Pick(logits, {}, 0, {0, 1, 1, 77}).end_probability, 0.5, 1e-6);
  EXPECT_EQ(Pick(logits, {}, 0, {}).end_probability, 0);
  Sampling flat = {.temperature = 2};
  EXPECT_NEAR(Pick(logits, flat, 0, {2}).end_probability, std::sqrt(2) / (2 + std::sqrt(2)), 1e-6);
}

TEST(SamplerTest, DrawsDependOnlyOnSeedAndIndex) {
  const std::vector<float> logits = RandomLogits(1000, 1);
  Sampling sampling = {.temperature = 1, .seed = 7};
  Sampler used;
  for (int i = 50; i >= 0; --i) {
    const uint32_t id = used.Pick(logits, {sampling, i, {}})->id;
    EXPECT_EQ(id, Pick(logits, sampling, i).id) << i;
  }
  const auto many = Frequencies(logits, sampling, 200);
  EXPECT_GT(many.size(), 20u) << "indices draw apart";
  Sampling other = sampling;
  other.seed = 8;
  int same = 0;
  for (int i = 0; i < 100; ++i) same += Pick(logits, sampling, i).id == Pick(logits, other, i).id;
  EXPECT_LT(same, 50) << "seeds draw apart";
}

TEST(SamplerTest, FrequenciesAreTheSoftmaxAtTheTemperature) {
  const std::vector<float> logits = {0, 1, 2, -1};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    Sampling sampling = {.temperature = temperature};
    const auto share = Frequencies(logits, sampling, 20000);
    double mass = 0;
    for (const float logit : logits) mass += std::exp(logit / temperature);
    for (uint32_t id = 0; id < logits.size(); ++id) {
      const double p = std::exp(logits[id] / temperature) / mass;
      const double seen = share.contains(id) ? share.at(id) : 0;
      // Four standard errors.
      EXPECT_NEAR(seen, p, 4 * std::sqrt(p * (1 - p) / 20000)) << id << " at " << temperature;
    }
  }
}

TEST(SamplerTest, TopKKeepsTheKLargestAndRenormalises) {
  Sampling sampling = {.temperature = 1, .top_k = 2};
  const auto share = Frequencies({0, 1, 2, 1.5f}, sampling, 20000);
  ASSERT_EQ(share.size(), 2u);
  const double p = 1 / (1 + std::exp(-0.5));
  EXPECT_NEAR(share.at(2), p, 4 * std::sqrt(p * (1 - p) / 20000));
  sampling.top_k = 1;
  EXPECT_EQ(Pick({0, 1, 2, 1.5f}, sampling, 3).id, 2u);
}

TEST(SamplerTest, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.5, 0.3 and 0.2 of the ids 1, 2 and 0.
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  Sampling sampling = {.temperature = 1, .top_p = 0.45};
  EXPECT_EQ(Frequencies(logits, sampling, 100).size(), 1u);
  sampling.top_p = 0.7;
  const auto share = Frequencies(logits, sampling, 20000);
  ASSERT_EQ(share.size(), 2u);
  EXPECT_NEAR(share.at(1), 0.625, 0.015);
}

// Powers of two, which sum exactly: once the nucleus reaches top_p it takes no other token.
TEST(SamplerTest, BoundariesOfTopPAndTopKAreTheDefinitions) {
  const std::vector<float> even(4, 0.5f);
  Sampling sampling = {.temperature = 1};
  for (const auto& [top_p, kept] :
       std::map<double, size_t>{{0.25, 1}, {0.26, 2}, {0.5, 2}, {0.75, 3}, {1, 4}}) {
    sampling.top_p = top_p;
    const auto share = Frequencies(even, sampling, 400);
    EXPECT_EQ(share.size(), kept) << top_p;
    EXPECT_TRUE(share.contains(0)) << "among equals the smallest id comes first";
  }
  // Of equal logits at the k-th place the smaller ids are kept.
  sampling.top_p = 1;
  sampling.top_k = 2;
  const auto share = Frequencies({0, 1, 1, 1}, sampling, 400);
  EXPECT_EQ(share.size(), 2u);
  EXPECT_TRUE(share.contains(1) && share.contains(2));
  // top_p is a share of the tokens that top_k has kept: 1/2 of two halves is one of them; 1/2 of four
  // quarters would be two.
  sampling.top_p = 0.5;
  EXPECT_EQ(Frequencies(even, sampling, 400).size(), 1u);
}

// Sorting in several parts must give the same result as sorting everything.
TEST(SamplerTest, ABroadNucleusAgreesWithAPlainComputation) {
  const std::vector<float> logits = RandomLogits(3000, 5);
  std::vector<std::pair<double, uint32_t>> sorted;
  double mass = 0;
  for (uint32_t id = 0; id < logits.size(); ++id) {
    sorted.emplace_back(-logits[id], id);
    mass += std::exp(static_cast<double>(logits[id]));
  }
  std::sort(sorted.begin(), sorted.end());
  for (const double top_p : {0.3, 0.9, 0.999}) {
    double nucleus = 0;
    size_t size = 0;
    while (nucleus < top_p * mass) nucleus += std::exp(-sorted[size++].first);
    Sampling sampling = {.temperature = 1, .top_p = top_p};
    for (int i = 0; i < 200; ++i) {
      double left = DrawUniform(0, i) * nucleus;
      size_t pick = 0;
      while (pick + 1 < size && (left -= std::exp(-sorted[pick].first)) >= 0) ++pick;
      EXPECT_EQ(Pick(logits, sampling, i).id, sorted[pick].second) << "top_p " << top_p << ", index " << i;
    }
  }
}

TEST(SamplerTest, AlternativesAreTheMostLikelyTokensInOrder) {
  for (const size_t vocab : {20, 300, 5'000}) {
    std::vector<float> logits = RandomLogits(vocab, vocab);
    // Equals, of which the smaller ids come first; and such as cannot be drawn.
    logits[3] = logits[7] = logits[11] = 9;
    logits[0] = -std::numeric_limits<float>::infinity();
    std::vector<uint32_t> ids(vocab);
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
    double mass = 0;
    for (const float logit : logits) mass += std::exp(static_cast<double>(logit));
    Sampling sampling = {.temperature = 0.5};
    for (const int32_t asked : {0, 1, 4, kMaxLogprobs}) {
      sampling.logprobs = asked;
      const Drawn drawn = Pick(logits, sampling);
      ASSERT_EQ(drawn.top.size(), static_cast<size_t>(asked));
      for (size_t i = 0; i < drawn.top.size(); ++i) {
        EXPECT_EQ(drawn.top[i].id, ids[i]) << "place " << i << " of " << vocab;
        if (!std::isinf(logits[ids[i]])) {
          EXPECT_NEAR(drawn.top[i].logprob, logits[ids[i]] - std::log(mass), 1e-4);
        }
        if (drawn.top[i].id == drawn.id) {
          EXPECT_EQ(drawn.top[i].logprob, drawn.log_probability);
        }
      }
      sampling.logprobs.reset();
      const Drawn plain = Pick(logits, sampling);
      EXPECT_EQ(plain.id, drawn.id) << "asking changes no token";
      EXPECT_TRUE(plain.top.empty());
    }
  }
}

TEST(SamplerTest, NonFiniteLogitsAreAnError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  Sampler sampler;
  for (const std::vector<float>& logits :
       {std::vector<float>{nan, 1}, {1, nan}, {infinity, 1}, {-infinity, -infinity}}) {
    const auto drawn = sampler.Pick(logits, {});
    EXPECT_EQ(drawn.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(drawn.status().message()), HasSubstr("not finite"));
  }
  EXPECT_EQ(Pick({-infinity, 1}, {}).id, 1u) << "a token that is ruled out is no fault";
}

}  // namespace
}  // namespace bfio::worker
