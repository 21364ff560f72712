// Micro-batches between chains/proto/bfio/v1/pipeline.proto and the plain struct.
//
// Purpose: the one place where bytes of a neighbour become numbers. What FromProto gives has lists that
// belong together; whether it fits the chain is CheckMicroBatch's to say. Threads: pure.
#ifndef BFIO_CHAINS_WORKER_CONVERT_BATCH_H_
#define BFIO_CHAINS_WORKER_CONVERT_BATCH_H_

#include "absl/status/statusor.h"
#include "bfio/v1/pipeline.pb.h"
#include "chains/pipeline/micro_batch.h"

namespace bfio::worker {

// Clears `out` first.
void ToProto(const MicroBatch& batch, v1::Activations& out);

// INVALID_ARGUMENT, naming the field. What it allocates is bounded by the message's own size.
absl::StatusOr<MicroBatch> FromProto(const v1::Activations& message);

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_WORKER_CONVERT_BATCH_H_
