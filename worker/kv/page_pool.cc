#include "worker/kv/page_pool.h"

namespace bfio::worker {

PagePool::PagePool(int32_t size) : taken_(static_cast<size_t>(size), 0) {
  free_.reserve(taken_.size());
  for (PageId page = size - 1; page >= 0; --page) free_.push_back(page);
}

std::optional<PageId> PagePool::Take() {
  if (free_.empty()) return std::nullopt;
  const PageId page = free_.back();
  free_.pop_back();
  taken_[page] = 1;
  return page;
}

bool PagePool::Return(PageId page) {
  if (!IsTaken(page)) return false;
  taken_[page] = 0;
  free_.push_back(page);  // does not allocate: capacity is reserved at the start
  return true;
}

}  // namespace bfio::worker
