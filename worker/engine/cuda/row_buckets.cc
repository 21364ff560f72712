#include "worker/engine/cuda/row_buckets.h"

#include <algorithm>

namespace bfio::worker::gpu {
namespace {

constexpr int32_t kFirstHalfway = 64;

}  // namespace

RowBuckets::RowBuckets(int32_t max_rows) {
  for (int64_t size = 1; size < max_rows; size *= 2) {
    sizes_.push_back(static_cast<int32_t>(size));
    if (size >= kFirstHalfway && size / 2 * 3 < max_rows)
      sizes_.push_back(static_cast<int32_t>(size / 2 * 3));
  }
  sizes_.push_back(max_rows);
}

int RowBuckets::Index(int32_t rows) const {
  return static_cast<int>(std::lower_bound(sizes_.begin(), sizes_.end(), rows) - sizes_.begin());
}

}  // namespace bfio::worker::gpu
