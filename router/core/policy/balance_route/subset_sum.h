// Finds exactly k of n items whose sum comes closest to a limit from below, with bitsets.
//
// Purpose: the second stage of balance_route.h. Limits above 65,536 are approximated to one part in 32,768,
// so that time and memory are bounded: O(n k min(limit, 65,536) / 64) words. Threads: one.
#ifndef BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_SUBSET_SUM_H_
#define BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_SUBSET_SUM_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace bfio::core {

class SubsetSum {
 public:
  // The indices of k items with the largest sum that is at most `limit`, ascending; if every sum of k items
  // exceeds it, the indices of the k smallest items. With a limit above 65,536 items count as multiples of a
  // unit, rounded up, so that no sum exceeds the limit. Valid until the next call. REQUIRES: 1 <= k <=
  // sizes.size() <= 65535; sizes >= 0.
  const std::vector<int32_t>& Best(absl::Span<const int64_t> sizes, int32_t k, int64_t limit);

 private:
  using Bits = std::vector<uint64_t>;
  // Marks every sum of `count` items that becomes reachable with item `index`.
  void Open(int32_t count, int32_t index, int64_t size);
  void TakeSmallest(absl::Span<const int64_t> sizes, int32_t k);

  // Sizes in units.
  std::vector<int64_t> units_;
  int64_t limit_ = 0;
  // By number of items: the reachable sums up to limit_, and for each of them the item that made it
  // reachable.
  std::vector<Bits> reachable_;
  std::vector<std::vector<uint16_t>> opened_by_;
  std::vector<int32_t> chosen_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_SUBSET_SUM_H_
