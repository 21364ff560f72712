// Converts micro-batches between chains/proto/bfio/v1/pipeline.proto and the plain struct. The only place
// that parses a neighbour's bytes. FromProto returns lists of consistent lengths; whether they fit the chain
// is checked by CheckMicroBatch. Threads: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "bfio/v1/pipeline.pb.h"
#include "chains/pipeline/micro_batch.h"

namespace bfio::worker {

// Clears `out` first.
void ToProto(const MicroBatch& batch, v1::Activations& out);

// INVALID_ARGUMENT, naming the field. Memory is bounded by the message's size.
absl::StatusOr<MicroBatch> FromProto(const v1::Activations& message);

}  // namespace bfio::worker
