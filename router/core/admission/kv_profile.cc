#include "router/core/admission/kv_profile.h"

namespace bfio::core {

void KvProfile::Advance(int64_t now) {
  now_ = now;
  auto it = bends_.begin();
  for (; it != bends_.end() && it->first <= now; ++it) here_ += it->second;
  bends_.erase(bends_.begin(), it);
}

void KvProfile::Change(const KvLine& line, const Sum& by) {
  if (line.from <= now_) {
    here_ += by;
  } else {
    Bend(line.from, by);
  }
  Bend(line.to + 1, -by);
}

void KvProfile::Bend(int64_t at, const Sum& by) {
  const auto it = bends_.try_emplace(at).first;
  it->second += by;
  if (it->second.size == 0 && it->second.rate == 0) bends_.erase(it);
}

// Rates are not negative, so the sum is largest at the last time before a bend.
int64_t KvProfile::Peak(int64_t from, int64_t to, Sum sum) const {
  sum += here_;
  int64_t peak = 0;
  for (const auto& [at, bend] : bends_) {
    if (at > to) break;
    if (at > from) peak = std::max(peak, sum.At(at - 1));
    sum += bend;
  }
  return std::max(peak, sum.At(to));
}

void KvProfile::Peaks(absl::Span<const int64_t> starts, absl::Span<int64_t> peaks) const {
  Sum sum = here_;
  auto it = bends_.begin();
  for (size_t k = 0; k < starts.size(); ++k) {
    const bool last = k + 1 == starts.size();
    const int64_t from = now_ + starts[k], end = last ? 0 : now_ + starts[k + 1];
    peaks[k] = 0;
    for (; it != bends_.end() && (last || it->first < end); ++it) {
      if (it->first > from) peaks[k] = std::max(peaks[k], sum.At(it->first - 1));
      sum += it->second;
    }
    if (!last) peaks[k] = std::max(peaks[k], sum.At(end - 1));
  }
}

}  // namespace bfio::core
