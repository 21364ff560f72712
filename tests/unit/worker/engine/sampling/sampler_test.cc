#include "worker/engine/sampling/sampler.h"

#include <numeric>

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

TEST(SamplerTest, SeedsAndIndicesDrawApart) {
  const std::vector<float> logits = RandomLogits(1000, 1);
  EXPECT_GT(Frequencies(logits, {.temperature = 1, .seed = 7}, 200).size(), 20u);
  int same = 0;
  for (int i = 0; i < 100; ++i) {
    same += Pick(logits, {.temperature = 1, .seed = 7}, i).id ==
            Pick(logits, {.temperature = 1, .seed = 8}, i).id;
  }
  EXPECT_LT(same, 50);
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

// One sampler draws in rows of every kind, with equal logits and such as cannot be drawn: a draw depends on
// its row and parameters only.
TEST(SamplerTest, EveryDrawIsThatOfAPlainComputation) {
  Sampler sampler;
  Rng rng(5);
  for (int round = 0; round < 600; ++round) {
    SCOPED_TRACE(round);
    const size_t vocab = std::vector<size_t>{1, 20, 300, 3000}[rng.Below(4)];
    std::vector<float> logits = RandomLogits(vocab, round);
    if (rng.Below(3) == 0) {
      for (float& logit : logits) logit = std::round(logit);
    }
    if (rng.Below(3) == 0) logits[rng.Below(vocab)] = vocab > 1 ? -std::numeric_limits<float>::infinity() : 0;
    Sampling sampling = {.temperature = rng.Below(4) == 0   ? 0
                                        : rng.Below(3) == 0 ? 1
                                                            : 0.1 + 2 * rng.Uniform()};
    if (rng.Below(2) == 0) sampling.top_p = 0.01 + 0.99 * rng.Uniform();
    if (rng.Below(2) == 0) sampling.top_k = 1 + static_cast<int32_t>(rng.Below(vocab + 9));
    if (rng.Below(2) == 0)
      sampling.logprobs = std::min<int32_t>(kMaxLogprobs, static_cast<int32_t>(rng.Below(vocab)));
    sampling.seed = rng.Next();
    std::vector<uint32_t> ends = {static_cast<uint32_t>(rng.Below(vocab)),
                                  static_cast<uint32_t>(rng.Below(vocab)), 9999};
    const auto got = sampler.Pick(logits, {sampling, round, ends});
    ASSERT_TRUE(got.ok()) << got.status();

    std::vector<uint32_t> ids(vocab);
    std::iota(ids.begin(), ids.end(), 0);
    const std::vector<uint32_t> by_id = ids;
    std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
    const auto weight = [&](uint32_t id, double temperature) {
      return std::exp((static_cast<double>(logits[id]) - logits[ids[0]]) / temperature);
    };
    const auto mass = [&](absl::Span<const uint32_t> of, double temperature) {
      double sum = 0;
      for (const uint32_t id : of) sum += weight(id, temperature);
      return sum;
    };
    const double temperature = sampling.temperature == 0 ? 1 : sampling.temperature;
    size_t kept = std::min<size_t>(vocab, sampling.top_k.value_or(vocab));
    double nucleus = mass(absl::MakeConstSpan(ids).first(kept), temperature);
    // Draws go through the ids in order if nothing is left out, else through the more likely ones first.
    const std::vector<uint32_t>& line = kept == vocab && sampling.top_p >= 1 ? by_id : ids;
    if (sampling.top_p < 1) {
      const double wanted = sampling.top_p * nucleus;
      for (nucleus = 0, kept = 0; nucleus < wanted; ++kept) nucleus += weight(ids[kept], temperature);
    }
    double left = DrawUniform(sampling.seed, round) * nucleus;
    size_t pick = 0;
    while (pick + 1 < kept && (left -= weight(line[pick], temperature)) >= 0) ++pick;
    EXPECT_EQ(got->id, sampling.temperature == 0 ? ids[0] : line[pick]);
    const double log_mass = logits[ids[0]] + std::log(mass(ids, 1));
    EXPECT_NEAR(got->log_probability, logits[got->id] - log_mass, 1e-4);
    ends.resize(ends[0] == ends[1] ? 1 : 2);
    EXPECT_NEAR(got->end_probability, mass(ends, temperature) / mass(ids, temperature), 1e-6);
    ASSERT_EQ(got->top.size(), static_cast<size_t>(sampling.logprobs.value_or(0)));
    for (size_t i = 0; i < got->top.size(); ++i) {
      EXPECT_EQ(got->top[i].id, ids[i]);
      if (!std::isinf(logits[ids[i]])) {
        EXPECT_NEAR(got->top[i].logprob, logits[ids[i]] - log_mass, 1e-4);
      }
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
