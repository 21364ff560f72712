// Exactly k of n items whose sum comes closest to a limit from below, by bitset.
//
// Purpose: the second stage of balance_route.h. Limits above 65,536 are met to one part in 32,768 of the
// limit, so that time and memory are bounded: O(n k min(limit, 65,536) / 64) words. Threads: one.
#ifndef BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_SUBSET_SUM_H_
#define BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_SUBSET_SUM_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace bfio::core {

class SubsetSum {
 public:
  // The indices of k items with the largest sum that is at most `limit`, ascending; when there are none, of
  // the k smallest, whose sum is then the least above it. With a larger limit than 65,536 items count as
  // multiples of a unit, rounded up, so that no sum exceeds the limit. Valid until the next call.
  // REQUIRES: 1 <= k <= sizes.size() <= 65535; sizes >= 0.
  const std::vector<int32_t>& Best(absl::Span<const int64_t> sizes, int32_t k, int64_t limit);

 private:
  using Bits = std::vector<uint64_t>;
  // Makes every sum that item `index` opens with `count` items reachable.
  void Open(int32_t count, int32_t index, int64_t size);
  void TakeSmallest(absl::Span<const int64_t> sizes, int32_t k);

  // Sizes in units.
  std::vector<int64_t> units_;
  int64_t limit_ = 0;
  // By number of items: the sums up to limit_ that are reachable, and for each the item that made it so.
  std::vector<Bits> reachable_;
  std::vector<std::vector<uint16_t>> opened_by_;
  std::vector<int32_t> chosen_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_SUBSET_SUM_H_
