#include "router/core/lookahead/hazard_counts.h"

#include <algorithm>

namespace bfio::core {
namespace {

constexpr double kRescaleAbove = 1e100;

}  // namespace

void HazardCounts::Observe(int64_t from, int64_t to, bool finished) {
  if (from >= to) return;
  const int32_t last = lattice_.Bin(to);
  if (last >= bins()) {
    exposed_.resize(static_cast<size_t>(last) + 1, 0);
    ended_.resize(static_cast<size_t>(last) + 1, 0);
  }
  for (int32_t bin = lattice_.Bin(from + 1); bin <= last; ++bin) {
    const int64_t low = std::max(from + 1, lattice_.First(bin));
    const int64_t high = bin == last ? to : lattice_.First(bin + 1) - 1;
    exposed_[bin] += weight_ * static_cast<double>(high - low + 1);
  }
  if (!finished) return;
  ended_[last] += weight_;
  total_ended_ += weight_;
  ++observed_;
  weight_ *= growth_;
  if (weight_ < kRescaleAbove) return;
  for (double& v : exposed_) v /= weight_;
  for (double& v : ended_) v /= weight_;
  total_ended_ /= weight_;
  weight_ = 1;
}

}  // namespace bfio::core
