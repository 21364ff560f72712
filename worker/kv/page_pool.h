// The pages of a KV cache: which are free.
//
// Purpose: hands out page numbers 0 .. size - 1 and takes them back, each in O(1), without allocating memory.
// The page freed last is handed out first: it is the likeliest to be in a cache. Pure; one thread.
#ifndef BFIO_WORKER_KV_PAGE_POOL_H_
#define BFIO_WORKER_KV_PAGE_POOL_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace bfio::worker {

using PageId = int32_t;

class PagePool {
 public:
  // REQUIRES: size >= 0.
  explicit PagePool(int32_t size);

  // Nothing when all are taken.
  std::optional<PageId> Take();
  // False, and nothing changes, when the page is free already or was never one.
  [[nodiscard]] bool Return(PageId page);

  int32_t size() const { return static_cast<int32_t>(taken_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t taken() const { return size() - free(); }
  bool IsTaken(PageId page) const { return page >= 0 && page < size() && taken_[page] != 0; }

 private:
  // A stack; the next page is at its end.
  std::vector<PageId> free_;
  // By page.
  std::vector<char> taken_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_KV_PAGE_POOL_H_
