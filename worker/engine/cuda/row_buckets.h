// The numbers of rows that steps are padded to.
//
// Purpose: a captured graph and a chosen matrix product fit one number of rows, so a step runs in the
// smallest bucket that holds it. Buckets are powers of two up to 64 (decode steps are bound by memory
// bandwidth, where padding costs nothing), and above that also the midpoints between them (steps with long
// prompts are compute-bound: at most a third is padding). Threads: immutable.
#ifndef BFIO_WORKER_ENGINE_CUDA_ROW_BUCKETS_H_
#define BFIO_WORKER_ENGINE_CUDA_ROW_BUCKETS_H_

#include <cstdint>
#include <vector>

namespace bfio::worker::gpu {

class RowBuckets {
 public:
  // The largest bucket is `max_rows`. REQUIRES: max_rows >= 1.
  explicit RowBuckets(int32_t max_rows);

  // Ascending.
  const std::vector<int32_t>& sizes() const { return sizes_; }
  int count() const { return static_cast<int>(sizes_.size()); }
  // Index of the smallest bucket that holds `rows`. REQUIRES: 0 <= rows <= max_rows.
  int Index(int32_t rows) const;

 private:
  std::vector<int32_t> sizes_;
};

}  // namespace bfio::worker::gpu

#endif  // BFIO_WORKER_ENGINE_CUDA_ROW_BUCKETS_H_
