// Random checkpoints: directories that the engines and transformers load, for tests, demos and benchmarks.
//
// Purpose: a model of any size without a download. The same options give the same bytes on every machine. The
// values of a tensor depend only on the seed and its name, so dtype and number of shards change only the
// rounding.
// Threads: one at a time per directory.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/engine/model/model_config.h"
#include "worker/engine/model/safetensors.h"

namespace bfio::checkpoint {

struct CheckpointOptions {
  worker::ModelConfig model;
  worker::DType dtype = worker::DType::kBF16;
  // Number of weight files, at most one per tensor; with more than one an index file is written too.
  int64_t shards = 1;
  // Standard deviation of the logits. At 4 the best of some hundred logits leads by 1 on average, while the
  // bf16 arithmetic of transformers itself is off by 0.1 (measured: 4 layers, hidden 256).
  double logit_std = 4;
  uint64_t seed = 1;
};

// Writes config.json and the weights into `directory`, which is created when it does not exist.
// INVALID_ARGUMENT: LoadModel does not accept the model that the options describe; ALREADY_EXISTS:
// `directory` is not empty. config.json is written last, so a half-written directory does not load.
absl::Status WriteRandomCheckpoint(const CheckpointOptions& options, const std::string& directory);

// The text of config.json for `options`.
std::string ConfigJson(const CheckpointOptions& options);

}  // namespace bfio::checkpoint
