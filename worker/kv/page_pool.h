// The free list of a KV cache's pages. Hands out page numbers 0 .. size - 1 and takes them back, each in
// O(1), without allocating memory. The page freed last is handed out first, because it is the most likely to
// be in a processor cache. Pure; used by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace bfio::worker {

using PageId = int32_t;

class PagePool {
 public:
  // REQUIRES: size >= 0.
  explicit PagePool(int32_t size);

  // Nothing when no page is free.
  std::optional<PageId> Take();
  // False, without any change, when the page is free or out of range.
  [[nodiscard]] bool Return(PageId page);

  int32_t size() const { return static_cast<int32_t>(taken_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t taken() const { return size() - free(); }
  bool IsTaken(PageId page) const { return page >= 0 && page < size() && taken_[page] != 0; }

 private:
  // A stack: the next page is at the back.
  std::vector<PageId> free_;
  // By page: whether it is taken.
  std::vector<char> taken_;
};

}  // namespace bfio::worker
