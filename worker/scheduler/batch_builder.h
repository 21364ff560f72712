// A batch while it is formed: the operations that schedulers consist of.
//
// Purpose: each scheduler is a short sequence of these operations (batch_scheduler.cc), which handle what
// schedulers have in common: order, budget, slots, KV, no request twice. Threads: belongs to its caller.
// Pure.
#ifndef BFIO_WORKER_SCHEDULER_BATCH_BUILDER_H_
#define BFIO_WORKER_SCHEDULER_BATCH_BUILDER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/scheduler/batch.h"

namespace bfio::worker {

class BatchBuilder {
 public:
  // `order`: indices of the requests in the order of service; empty: as given. The arguments must outlive
  // this. Chunks are appended to `batch`.
  BatchBuilder(absl::Span<const BatchRequest> requests, absl::Span<const int32_t> order,
               const BatchCapacity& capacity, std::vector<Chunk>& batch)
      : requests_(requests), order_(order), capacity_(capacity), batch_(batch) {}

  bool AnyDecoding() const;
  bool empty() const { return batch_.empty(); }

  // Adds one token of each decoding request, while the budget lasts.
  void AddDecodes();
  // Adds prompt tokens of one request after the other; the last chunk ends where the budget does. A request
  // for which there is no slot or KV blocks all later requests that have not started.
  void AddPrefillChunks();
  // Adds whole prompts, and stops at the first that exceeds the budget. True when there is a prompt for which
  // slots and KV suffice, whether it is in the batch or only the budget keeps it out.
  bool AddWholePrompts();

 private:
  int32_t At(size_t place) const { return order_.empty() ? static_cast<int32_t>(place) : order_[place]; }
  bool HasCapacityFor(const BatchRequest& request) const;
  int64_t PrefillCapacity() const { return std::min(capacity_.token_budget, capacity_.prefill_tokens); }
  void Add(int32_t which, int64_t rows);

  absl::Span<const BatchRequest> requests_;
  absl::Span<const int32_t> order_;
  BatchCapacity capacity_;
  std::vector<Chunk>& batch_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BATCH_BUILDER_H_
