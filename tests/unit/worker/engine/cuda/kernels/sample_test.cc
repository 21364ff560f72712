// The device's sampler under the emulator or on a GPU: exactly against its own definition computed on the
// host (cuda_backend_test.cc compares it with worker/engine/sampling).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/rng.h"
#include "gtest/gtest.h"
#include "tests/testing/cuda/kernel_memory.h"
#include "worker/engine/cuda/kernels/row_kernels.h"
#include "worker/engine/sampling/sampler.h"

namespace bfio::worker::gpu {
namespace {

using testing::DeviceBuffer;
using testing::KernelOrder;

struct Case {
  std::vector<float> logits;
  Sampling sampling;
  double uniform = 0;
  std::vector<uint32_t> ends;
};

DrawParams ParamsOf(const Case& c) {
  DrawParams params;
  params.uniform = c.uniform;
  params.top_p = c.sampling.top_p;
  params.inverse_temperature =
      c.sampling.temperature == 0 ? 0 : static_cast<float>(1 / c.sampling.temperature);
  params.top_k = c.sampling.top_k.value_or(0);
  params.top = c.sampling.logprobs.value_or(0);
  return params;
}

// Runs cases of one vocabulary in one launch, with threads in this order. `tops`: where the most likely
// tokens go, kMaxTop per case.
std::vector<DrawResult> Launch(const std::vector<Case>& cases, KernelOrder order,
                               std::vector<TopResult>* tops = nullptr) {
  const size_t vocab = cases[0].logits.size();
  std::vector<float> logits;
  std::vector<DrawParams> params;
  std::vector<uint32_t> ends;
  for (const Case& c : cases) {
    logits.insert(logits.end(), c.logits.begin(), c.logits.end());
    params.push_back(ParamsOf(c));
    params.back().first_end = static_cast<int32_t>(ends.size());
    params.back().end_count = static_cast<int32_t>(c.ends.size());
    ends.insert(ends.end(), c.ends.begin(), c.ends.end());
  }
  ends.push_back(0);
  DeviceBuffer<float> device_logits("logits", logits);
  DeviceBuffer<DrawParams> device_params("params", params);
  DeviceBuffer<uint32_t> device_ends("ends", ends);
  DeviceBuffer<StepCounts> counts("counts", {StepCounts{0, static_cast<int32_t>(cases.size())}});
  // One result more than cases, which no block may write.
  DeviceBuffer<DrawResult> results("results", cases.size() + 1);
  SampleArgs args;
  args.counts = counts.data();
  args.logits = device_logits.data();
  args.vocab = static_cast<int32_t>(vocab);
  args.params = device_params.data();
  args.ends = device_ends.data();
  args.results = results.data();
  DeviceBuffer<TopResult> device_tops("tops", cases.size() * kMaxTop);
  args.tops = device_tops.data();
  args.grid_draws = static_cast<int32_t>(cases.size()) + 1;
  testing::SetKernelOrder(order);
  const char* const error = testing::Finished(LaunchSample(args, nullptr));
  EXPECT_EQ(error, nullptr) << error;
  std::vector<DrawResult> all = results.Content();
  EXPECT_EQ(all[cases.size()].finite, 0xffffffffu) << "a draw beyond the step's was made";
  all.pop_back();
  if (tops != nullptr) *tops = device_tops.Content();
  return all;
}

// --- the definition, computed on the host ---

using Weights = std::vector<uint64_t>;

Weights WeightsOf(const Case& c, float inverse) {
  const float largest = *std::max_element(c.logits.begin(), c.logits.end());
  Weights weights;
  for (const float logit : c.logits) {
    const float distance = logit - largest;
    weights.push_back(std::isfinite(distance) ? static_cast<uint64_t>(std::exp(distance * inverse) * 0x1p38f)
                                              : 0);
  }
  return weights;
}

uint64_t ShareOf(double share, uint64_t total) {
  return std::min(static_cast<uint64_t>(share * static_cast<double>(total)), total - 1);
}

// The first id in `order` with which the sum of weights exceeds `target`.
uint32_t Invert(const Weights& weights, const std::vector<uint32_t>& order, uint64_t target) {
  uint64_t sum = 0;
  for (const uint32_t id : order) {
    if ((sum += weights[id]) > target) return id;
  }
  ADD_FAILURE() << "the target is beyond the sum";
  return 0;
}

uint32_t IdByDefinition(const Case& c) {
  if (c.sampling.temperature == 0) {
    return static_cast<uint32_t>(std::max_element(c.logits.begin(), c.logits.end()) - c.logits.begin());
  }
  const Weights weights = WeightsOf(c, ParamsOf(c).inverse_temperature);
  std::vector<uint32_t> order(c.logits.size());
  std::iota(order.begin(), order.end(), 0u);
  uint64_t kept = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  const size_t k = c.sampling.top_k ? static_cast<size_t>(*c.sampling.top_k) : order.size();
  if (k >= order.size() && c.sampling.top_p >= 1) return Invert(weights, order, ShareOf(c.uniform, kept));
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return c.logits[a] > c.logits[b]; });
  if (k < order.size()) order.resize(k);
  kept = 0;
  for (const uint32_t id : order) kept += weights[id];
  if (c.sampling.top_p < 1) {
    const auto wanted = static_cast<uint64_t>(std::ceil(c.sampling.top_p * static_cast<double>(kept)));
    uint64_t nucleus = 0;
    size_t size = 0;
    while (size == 0 || nucleus < std::min(wanted, kept)) nucleus += weights[order[size++]];
    kept = nucleus;
  }
  return Invert(weights, order, ShareOf(c.uniform, kept));
}

// Of any of these tokens, in double precision.
double Probability(const std::vector<float>& logits, const std::vector<uint32_t>& ids, double temperature) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double mass = 0, of_ids = 0;
  for (const float logit : logits) mass += std::exp((logit - largest) / temperature);
  for (const uint32_t id : ids) of_ids += std::exp((logits[id] - largest) / temperature);
  return of_ids / mass;
}

// Whether a slightly different uniform number or top_p gives `id`.
bool IsNear(const Case& c, uint32_t id) {
  for (const double shift : {-1e-5, 1e-5}) {
    Case moved = c;
    moved.uniform = std::clamp(moved.uniform + shift, 0.0, 1 - 0x1p-53);
    if (IdByDefinition(moved) == id) return true;
    moved = c;
    moved.sampling.top_p = std::clamp(moved.sampling.top_p * (1 + shift), 1e-12, 1.0);
    if (IdByDefinition(moved) == id) return true;
  }
  return false;
}

// --- random cases ---

// Kinds of rows: normal, flat, sharp, coarse with many equal logits, all equal, with tokens that cannot be
// drawn.
std::vector<float> RandomLogits(Rng& rng, size_t vocab) {
  const auto kind = rng.Below(6);
  std::vector<float> logits;
  for (size_t i = 0; i < vocab; ++i) {
    const double normal = rng.Normal();
    double logit = 3 * normal;
    if (kind == 1) logit = 0.01 * normal;
    if (kind == 2) logit = 20 * normal;
    if (kind == 3) logit = std::round(2 * normal) / 2;
    if (kind == 4) logit = 1.5;
    if (kind == 5 && rng.Below(3) == 0) logit = -INFINITY;
    logits.push_back(static_cast<float>(logit));
  }
  logits[rng.Below(vocab)] = static_cast<float>(rng.Normal());  // at least one is finite
  if (kind == 3) logits[rng.Below(vocab)] = -0.0f;
  return logits;
}

Case RandomCase(Rng& rng, size_t vocab) {
  Case c;
  c.logits = RandomLogits(rng, vocab);
  if (rng.Below(6) != 0) c.sampling.temperature = rng.Below(3) == 0 ? 1 : 0.05 + 3 * rng.Uniform();
  if (rng.Below(20) == 0) c.sampling.temperature = rng.Below(2) == 0 ? 1e30 : 1e-30;
  if (rng.Below(2) == 0) c.sampling.top_p = rng.Below(4) == 0 ? 1e-9 : rng.Uniform() + 1e-12;
  if (rng.Below(2) == 0) c.sampling.top_k = 1 + static_cast<int32_t>(rng.Below(vocab + 2));
  c.uniform = rng.Below(8) == 0 ? 0 : rng.Below(8) == 0 ? 1 - 0x1p-53 : rng.Uniform();
  for (uint64_t n = rng.Below(4); n > 0; --n) {
    const auto id = static_cast<uint32_t>(rng.Below(vocab));
    if (std::find(c.ends.begin(), c.ends.end(), id) == c.ends.end()) c.ends.push_back(id);
  }
  return c;
}

std::string Describe(const Case& c) {
  return ::testing::PrintToString(c.logits.size()) + " logits, temperature " +
         std::to_string(c.sampling.temperature) + ", top_p " + std::to_string(c.sampling.top_p) + ", top_k " +
         std::to_string(c.sampling.top_k.value_or(0)) + ", uniform " + std::to_string(c.uniform);
}

TEST(DeviceSampleTest, EqualsItsDefinitionInBothOrdersOfThreads) {
  Rng rng(1);
  for (const size_t vocab : {1, 2, 31, 32, 33, 257, 512, 1000, 4099}) {
    std::vector<Case> cases;
    for (int i = 0; i < 12; ++i) cases.push_back(RandomCase(rng, vocab));
    for (const auto order : {KernelOrder::kForward, KernelOrder::kReverse}) {
      const std::vector<DrawResult> results = Launch(cases, order);
      for (size_t i = 0; i < cases.size(); ++i) {
        EXPECT_EQ(results[i].finite, 1u);
        const double chosen = std::log(Probability(cases[i].logits, {results[i].id}, 1));
        EXPECT_NEAR(results[i].log_probability, chosen, 1e-5 + 1e-6 * std::abs(chosen));
        const double temperature = cases[i].sampling.temperature == 0 ? 1 : cases[i].sampling.temperature;
        EXPECT_NEAR(results[i].end_probability, Probability(cases[i].logits, cases[i].ends, temperature),
                    1e-5);
        // A GPU's exponential differs from the host's in the last bits.
        const bool near = testing::kOnGpu && IsNear(cases[i], results[i].id);
        EXPECT_TRUE(near || results[i].id == IdByDefinition(cases[i]))
            << results[i].id << ": " << Describe(cases[i]);
      }
    }
  }
}

TEST(DeviceSampleTest, TheMostLikelyTokensAreTheSamplers) {
  Rng rng(3);
  Sampler sampler;
  for (const size_t vocab : {20, 33, 700, 4099}) {
    std::vector<Case> cases;
    for (const int32_t asked : {0, 1, 5, kMaxTop}) {
      cases.push_back(RandomCase(rng, vocab));
      // Equal logits, of which the smaller ids come first, and such as cannot be drawn.
      for (size_t i = 0; i < 8; ++i) cases.back().logits[rng.Below(vocab)] = 3;
      for (size_t i = 0; i < vocab / 4; ++i) cases.back().logits[rng.Below(vocab)] = -INFINITY;
      cases.back().sampling.logprobs = asked;
    }
    for (const auto order : {KernelOrder::kForward, KernelOrder::kReverse}) {
      std::vector<TopResult> tops;
      Launch(cases, order, &tops);
      for (size_t i = 0; i < cases.size(); ++i) {
        Draw draw;
        draw.sampling.logprobs = cases[i].sampling.logprobs;
        const absl::StatusOr<Drawn> want = sampler.Pick(cases[i].logits, draw);
        ASSERT_TRUE(want.ok()) << want.status();
        ASSERT_EQ(want->top.size(), static_cast<size_t>(*draw.sampling.logprobs));
        for (size_t n = 0; n < want->top.size(); ++n) {
          const TopResult& got = tops[i * kMaxTop + n];
          EXPECT_EQ(got.id, want->top[n].id) << "place " << n << " of " << vocab;
          if (std::isinf(want->top[n].logprob)) {
            EXPECT_EQ(got.log_probability, want->top[n].logprob);
          } else {
            EXPECT_NEAR(got.log_probability, want->top[n].logprob, 1e-4);
          }
        }
      }
    }
  }
}

TEST(DeviceSampleTest, NonFiniteLogitsAreReportedAndAffectOnlyTheirRow) {
  Rng rng(4);
  std::vector<Case> cases;
  for (int i = 0; i < 5; ++i) cases.push_back(RandomCase(rng, 64));
  cases[1].logits[17] = NAN;
  cases[2].logits[63] = INFINITY;
  cases[3].logits.assign(64, -INFINITY);
  const auto results = Launch(cases, KernelOrder::kForward);
  EXPECT_EQ(results[0].finite, 1u);
  EXPECT_EQ(results[1].finite, 0u);
  EXPECT_EQ(results[2].finite, 0u);
  EXPECT_EQ(results[3].finite, 0u);
  EXPECT_EQ(results[4].finite, 1u);
  EXPECT_EQ(results[4].id, IdByDefinition(cases[4]));
}

}  // namespace
}  // namespace bfio::worker::gpu
