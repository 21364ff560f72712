// A batch while it is formed: the moves that schedulers are made of.
//
// Purpose: each scheduler is a short sequence of these moves (batch_scheduler.cc); what they have in common
// (order, budget, slots, KV, no request twice) is kept here once. Threads: belongs to its caller. Pure.
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
  // `order`: the requests' indices, first to be served first; empty: as they stand. All borrowed. Chunks are
  // appended to `batch`.
  BatchBuilder(absl::Span<const BatchRequest> requests, absl::Span<const int32_t> order,
               const BatchRoom& room, std::vector<Chunk>& batch)
      : requests_(requests), order_(order), room_(room), batch_(batch) {}

  bool AnyDecoding() const;
  bool empty() const { return batch_.empty(); }

  // A token of each decoding request, while the budget lasts.
  void AddDecodes();
  // Prompt tokens of one request after the other, the last one's cut where the budget ends. A request that
  // finds no slot or KV holds back those behind it that have not begun.
  void AddPrefillChunks();
  // Prompts in one piece; the first that the budget does not hold ends it. True when a prompt waits that
  // slots and KV would take, in the batch or not: the budget alone keeps it out then.
  bool AddWholePrompts();

 private:
  int32_t At(size_t place) const { return order_.empty() ? static_cast<int32_t>(place) : order_[place]; }
  bool HasRoomFor(const BatchRequest& request) const;
  int64_t PrefillRoom() const { return std::min(room_.token_budget, room_.prefill_tokens); }
  void Add(int32_t which, int64_t rows);

  absl::Span<const BatchRequest> requests_;
  absl::Span<const int32_t> order_;
  BatchRoom room_;
  std::vector<Chunk>& batch_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BATCH_BUILDER_H_
