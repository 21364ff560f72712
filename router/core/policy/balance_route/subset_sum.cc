#include "router/core/policy/balance_route/subset_sum.h"

#include <algorithm>
#include <numeric>

namespace bfio::core {
namespace {

constexpr int64_t kBits = 64;
constexpr int64_t kMostSums = 65536;

}  // namespace

const std::vector<int32_t>& SubsetSum::Best(absl::Span<const int64_t> sizes, int32_t k, int64_t limit) {
  chosen_.clear();
  // No sum exceeds k times the largest item, so larger sums need no bits.
  const int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  limit_ = std::min(limit, largest * k);
  if (limit_ < 0) {
    TakeSmallest(sizes, k);
    return chosen_;
  }
  const int64_t unit = limit_ / kMostSums + 1;
  limit_ /= unit;
  units_.clear();
  for (const int64_t size : sizes) units_.push_back((size + unit - 1) / unit);
  const size_t words = static_cast<size_t>(limit_ / kBits + 1);
  reachable_.resize(std::max(reachable_.size(), static_cast<size_t>(k) + 1));
  opened_by_.resize(reachable_.size());
  for (int32_t count = 0; count <= k; ++count) {
    reachable_[count].assign(words, 0);
    opened_by_[count].resize(words * kBits);
  }
  reachable_[0][0] = 1;
  for (int32_t i = 0; i < static_cast<int32_t>(sizes.size()); ++i) {
    // In descending order, so that an item counts once.
    for (int32_t count = std::min(i + 1, k); count >= 1; --count) Open(count, i, units_[i]);
  }
  int64_t sum = limit_;
  while (sum >= 0 && !(reachable_[k][sum / kBits] >> (sum % kBits) & 1)) --sum;
  if (sum < 0) {
    TakeSmallest(sizes, k);
    return chosen_;
  }
  for (int32_t count = k; count >= 1; --count) {
    // The item that made the sum of `count` items reachable comes after the one that made the remaining sum
    // reachable with one item less.
    chosen_.push_back(opened_by_[count][sum]);
    sum -= units_[chosen_.back()];
  }
  std::reverse(chosen_.begin(), chosen_.end());
  return chosen_;
}

void SubsetSum::Open(int32_t count, int32_t index, int64_t size) {
  const Bits& from = reachable_[count - 1];
  Bits& to = reachable_[count];
  const int64_t words = static_cast<int64_t>(to.size()), skip = size / kBits, shift = size % kBits;
  for (int64_t w = skip; w < words; ++w) {
    uint64_t bits = from[w - skip] << shift;
    if (shift > 0 && w > skip) bits |= from[w - skip - 1] >> (kBits - shift);
    bits &= ~to[w];
    to[w] |= bits;
    for (; bits != 0; bits &= bits - 1) {
      opened_by_[count][w * kBits + __builtin_ctzll(bits)] = static_cast<uint16_t>(index);
    }
  }
}

void SubsetSum::TakeSmallest(absl::Span<const int64_t> sizes, int32_t k) {
  chosen_.resize(sizes.size());
  std::iota(chosen_.begin(), chosen_.end(), 0);
  std::stable_sort(chosen_.begin(), chosen_.end(), [&](int32_t a, int32_t b) { return sizes[a] < sizes[b]; });
  chosen_.resize(static_cast<size_t>(k));
  std::sort(chosen_.begin(), chosen_.end());
}

}  // namespace bfio::core
