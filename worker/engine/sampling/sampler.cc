#include "worker/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"

namespace bfio::worker {
namespace {

// Candidates that are sorted before the size of the nucleus is known; then four times as many, and so on. Not
// tuned: the nucleus of a confident model has a handful of tokens.
constexpr size_t kFirstSorted = 64;

// Probability of `logit` relative to that of the largest, `max`. 0 for a token that cannot be drawn.
double Weight(float logit, float max, double inverse_temperature) {
  return std::exp((static_cast<double>(logit) - max) * inverse_temperature);
}

// Summed in the order of ids, so that the result does not depend on the batch.
double Mass(absl::Span<const float> logits, float max, double inverse_temperature) {
  double mass = 0;
  if (inverse_temperature == 1) {
    for (const float logit : logits) mass += static_cast<double>(std::exp(logit - max));
    return mass;
  }
  for (const float logit : logits) mass += Weight(logit, max, inverse_temperature);
  return mass;
}

// Whether candidate `a` is more likely than `b`, or comes first among equals.
constexpr auto kBefore = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
};

}  // namespace

double DrawUniform(uint64_t seed, int64_t index) {
  return Rng(seed ^ Mix64(static_cast<uint64_t>(index) + 1)).Uniform();
}

absl::StatusOr<Drawn> Sampler::Pick(absl::Span<const float> logits, const Draw& draw) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const float max = *largest;
  const double mass = Mass(logits, max, 1);
  // A NaN logit at any position makes the sum NaN.
  if (!std::isfinite(max) || !std::isfinite(mass)) {
    return absl::InternalError(absl::StrCat("the model's logits are not finite (largest ", max, ")"));
  }
  Drawn drawn;
  const double temperature = draw.sampling.temperature;
  double drawn_mass = mass, inverse = 1;
  if (temperature == 0) {
    drawn.id = static_cast<uint32_t>(largest - logits.begin());
  } else {
    inverse = 1 / temperature;
    drawn_mass = temperature == 1 ? mass : Mass(logits, max, inverse);
    drawn.id =
        PickTruncated(logits, draw.sampling, max, drawn_mass, DrawUniform(draw.sampling.seed, draw.index));
  }
  const double log_mass = max + std::log(mass);
  drawn.log_probability = static_cast<float>(static_cast<double>(logits[drawn.id]) - log_mass);
  if (draw.sampling.logprobs.value_or(0) > 0)
    FillTop(logits, static_cast<size_t>(*draw.sampling.logprobs), log_mass, drawn.top);
  double ends = 0;
  for (size_t i = 0; i < draw.ends.size(); ++i) {
    const uint32_t id = draw.ends[i];
    if (id >= logits.size()) continue;
    if (std::find(draw.ends.begin(), draw.ends.begin() + i, id) != draw.ends.begin() + i) continue;
    ends += Weight(logits[id], max, inverse);
  }
  drawn.end_probability = static_cast<float>(std::min(1.0, ends / drawn_mass));
  return drawn;
}

void Sampler::FillTop(absl::Span<const float> logits, size_t count, double log_mass,
                      std::vector<TopToken>& top) {
  // A heap of the best so far, the worst of them in front.
  candidates_.clear();
  for (uint32_t id = 0; id < logits.size(); ++id) {
    const Candidate candidate{logits[id], id};
    if (candidates_.size() == count) {
      if (!kBefore(candidate, candidates_.front())) continue;
      std::pop_heap(candidates_.begin(), candidates_.end(), kBefore);
      candidates_.pop_back();
    }
    candidates_.push_back(candidate);
    std::push_heap(candidates_.begin(), candidates_.end(), kBefore);
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), kBefore);
  top.clear();
  for (const Candidate& candidate : candidates_)
    top.push_back({candidate.id, static_cast<float>(static_cast<double>(candidate.logit) - log_mass)});
}

uint32_t Sampler::PickTruncated(absl::Span<const float> logits, const Sampling& sampling, float max,
                                double mass, double uniform) {
  const double inverse = 1 / sampling.temperature;
  const size_t k = sampling.top_k ? std::min<size_t>(*sampling.top_k, logits.size()) : logits.size();
  if (k == logits.size() && sampling.top_p >= 1) {
    double left = uniform * mass;
    uint32_t last = 0;
    for (uint32_t id = 0; id < logits.size(); ++id) {
      const double weight = Weight(logits[id], max, inverse);
      if (weight == 0) continue;
      last = id;
      left -= weight;
      if (left < 0) return id;
    }
    return last;  // rounding left a small remainder
  }
  candidates_.clear();
  for (uint32_t id = 0; id < logits.size(); ++id) candidates_.push_back({logits[id], id});
  size_t sorted = 0;
  if (k < logits.size()) {
    SortFront(0, sorted = k);
    mass = 0;
    for (size_t i = 0; i < k; ++i) mass += Weight(candidates_[i].logit, max, inverse);
  }
  // The nucleus: the fewest candidates whose mass reaches top_p of the mass kept by top_k.
  const double wanted = sampling.top_p * mass;
  double nucleus = 0;
  size_t size = 0;
  while (size < k && (size == 0 || nucleus < wanted)) {
    if (size == sorted) {
      const size_t next = std::min(k, std::max(kFirstSorted, 4 * sorted));
      SortFront(sorted, next);
      sorted = next;
    }
    nucleus += Weight(candidates_[size++].logit, max, inverse);
  }
  double left = uniform * nucleus;
  for (size_t i = 0; i < size; ++i) {
    left -= Weight(candidates_[i].logit, max, inverse);
    if (left < 0) return candidates_[i].id;
  }
  return candidates_[size - 1].id;
}

void Sampler::SortFront(size_t sorted, size_t count) {
  const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
  const auto end = candidates_.begin() + static_cast<ptrdiff_t>(count);
  if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), kBefore);
  std::sort(begin, end, kBefore);
}

}  // namespace bfio::worker
