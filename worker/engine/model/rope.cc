#include "worker/engine/model/rope.h"

#include <cmath>
#include <numbers>

namespace bfio::worker {
namespace {

// Llama 3.1: wavelengths that fit into the training context many times are kept, those that do not fit once
// are stretched, and those between are interpolated.
double StretchLlama3(const RopeConfig& rope, double frequency) {
  const double wavelengths =
      static_cast<double>(rope.original_max_positions) * frequency / (2 * std::numbers::pi);
  if (wavelengths > rope.high_freq_factor) return frequency;
  if (wavelengths < rope.low_freq_factor) return frequency / rope.factor;
  const double keep = (wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - keep) * frequency / rope.factor + keep * frequency;
}

}  // namespace

std::vector<float> InverseFrequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<float> frequencies(head_dim / 2);
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    switch (rope.kind) {
      case RopeConfig::Kind::kDefault:
        break;
      case RopeConfig::Kind::kLinear:
        frequency /= rope.factor;
        break;
      case RopeConfig::Kind::kLlama3:
        frequency = StretchLlama3(rope, frequency);
        break;
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace bfio::worker
