#include "router/core/scheduler/recent_waits.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace bfio::core {

void RecentWaits::Add(int64_t steps, int64_t block) {
  if (filling_.samples >= block) {
    std::swap(full_, filling_);
    filling_.counts.clear();
    filling_.samples = 0;
  }
  const size_t bucket = Bucket(steps);
  if (bucket >= filling_.counts.size()) filling_.counts.resize(bucket + 1, 0);
  ++filling_.counts[bucket];
  ++filling_.samples;
}

int64_t RecentWaits::Quantile(double above) const {
  const double most = above * static_cast<double>(full_.samples + filling_.samples);
  int64_t seen = 0;
  for (size_t bucket = std::max(full_.counts.size(), filling_.counts.size()); bucket-- > 0;) {
    seen += full_.At(bucket) + filling_.At(bucket);
    if (static_cast<double>(seen) > most) return Lowest(bucket);
  }
  return 0;
}

size_t RecentWaits::Bucket(int64_t steps) {
  if (steps < kExact) return static_cast<size_t>(steps);
  const double doublings = std::log2(static_cast<double>(steps) / static_cast<double>(kExact));
  return static_cast<size_t>(kExact + static_cast<int64_t>(doublings * kPerDoubling));
}

int64_t RecentWaits::Lowest(size_t bucket) {
  const int64_t index = static_cast<int64_t>(bucket);
  if (index < kExact) return index;
  const double doublings = static_cast<double>(index - kExact) / kPerDoubling;
  return static_cast<int64_t>(std::ceil(static_cast<double>(kExact) * std::exp2(doublings)));
}

}  // namespace bfio::core
