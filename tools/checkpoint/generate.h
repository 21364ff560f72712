// Random checkpoints: directories that the engines and transformers load, for tests, demos and benchmarks.
//
// Purpose: a model of any size without a download. The same options give the same bytes on every machine; a
// tensor's values depend on seed and name alone, so dtype and shards change nothing but the rounding.
// Threads: one at a time per directory.
#ifndef BFIO_TOOLS_CHECKPOINT_GENERATE_H_
#define BFIO_TOOLS_CHECKPOINT_GENERATE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/engine/model/model_config.h"
#include "worker/engine/model/safetensors.h"

namespace bfio::checkpoint {

struct CheckpointOptions {
  worker::ModelConfig model;
  worker::DType dtype = worker::DType::kBF16;
  // Files; above 1 there is an index, too. At most one per tensor.
  int64_t shards = 1;
  // Standard deviation of the logits. At 4 the best of some hundred leads by 1 on average, and transformers'
  // own bf16 is off by 0.1 (measured: 4 layers, hidden 256).
  double logit_std = 4;
  uint64_t seed = 1;
};

// Writes config.json and the weights into `directory`, made when it is not there. INVALID_ARGUMENT: the
// options describe no model that LoadModel takes; ALREADY_EXISTS: there is something in `directory`.
// config.json comes last, so a directory that was left half-written does not load.
absl::Status WriteRandomCheckpoint(const CheckpointOptions& options, const std::string& directory);

// The config.json of it.
std::string ConfigJson(const CheckpointOptions& options);

}  // namespace bfio::checkpoint

#endif  // BFIO_TOOLS_CHECKPOINT_GENERATE_H_
