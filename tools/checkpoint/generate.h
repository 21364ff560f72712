// Random checkpoints: directories that the engines and transformers load, for tests, demos and benchmarks.
//
// Purpose: a Llama of any size without a download. The same shape gives the same bytes on every machine.
// Threads: one at a time per directory.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/engine/model/model_config.h"

namespace bfio::checkpoint {

// Writes config.json and the weights, in bf16, into `directory`, which is created when it does not exist.
// INVALID_ARGUMENT: LoadModel does not accept a Llama of these sizes; ALREADY_EXISTS: `directory` is not
// empty. config.json is written last, so a half-written directory does not load.
absl::Status WriteRandomCheckpoint(const worker::ModelConfig& model, const std::string& directory);

}  // namespace bfio::checkpoint
