// Invariants of every batch, whichever scheduler formed it.
//
// Purpose: the rules of a batch in one place, for tests and for simulators that check themselves. Pure
// functions; any thread.
#ifndef BFIO_WORKER_SCHEDULER_BATCH_CHECK_H_
#define BFIO_WORKER_SCHEDULER_BATCH_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/scheduler/batch.h"
#include "worker/scheduler/batch_scheduler.h"

namespace bfio::worker {

// The tokens that the next batch could contain with an unlimited budget: those of all residents, and those of
// other requests, in `order`, up to the first for which slots or KV do not suffice; prompt tokens only up to
// capacity.prefill_tokens.
int64_t AvailableTokens(absl::Span<const BatchRequest> requests, const BatchCapacity& capacity,
                        BatchOrder order);

// The number of tokens in a batch.
int64_t BatchTokens(absl::Span<const Chunk> batch);

// FAILED_PRECONDITION, naming the request, unless every chunk belongs to a request that has those tokens
// left, no request occurs twice, no request decodes with prompt tokens left, and the batch is within budget,
// slots and KV.
absl::Status CheckBatch(absl::Span<const BatchRequest> requests, const BatchCapacity& capacity,
                        absl::Span<const Chunk> batch);

// FAILED_PRECONDITION unless the batch contains min(budget, available) tokens.
absl::Status CheckWorkConservation(absl::Span<const BatchRequest> requests, const BatchCapacity& capacity,
                                   BatchOrder order, absl::Span<const Chunk> batch);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_BATCH_CHECK_H_
