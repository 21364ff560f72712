// What must hold for every batch, whatever formed it.
//
// Purpose: the rules of a batch in one place, for tests and for simulators that check themselves. Pure. Any
// thread.
#ifndef BFIO_WORKER_SCHEDULER_BATCH_CHECK_H_
#define BFIO_WORKER_SCHEDULER_BATCH_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/scheduler/batch.h"
#include "worker/scheduler/batch_scheduler.h"

namespace bfio::worker {

// Tokens that the next batch could hold if the budget had no end: those of all residents, and of the others
// as far as slots and KV go, in `order`, up to the first that does not fit; of prompts what the capacity
// allows.
int64_t AvailableTokens(absl::Span<const BatchRequest> requests, const BatchRoom& room, BatchOrder order);

// Tokens of a batch.
int64_t BatchTokens(absl::Span<const Chunk> batch);

// FAILED_PRECONDITION, naming the request, unless every chunk is of a request that has those tokens to
// compute, no request is there twice, no decode comes with prompt left, and budget, slots and KV hold.
absl::Status CheckBatch(absl::Span<const BatchRequest> requests, const BatchRoom& room,
                        absl::Span<const Chunk> batch);

// FAILED_PRECONDITION unless the batch holds min(budget, available) tokens.
absl::Status CheckWorkConservation(absl::Span<const BatchRequest> requests, const BatchRoom& room,
                                   BatchOrder order, absl::Span<const Chunk> batch);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BATCH_CHECK_H_
