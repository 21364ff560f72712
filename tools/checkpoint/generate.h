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
#include "absl/strings/string_view.h"
#include "common/base/rng.h"
#include "worker/engine/model/model_config.h"
#include "worker/engine/model/safetensors.h"

namespace bfio::checkpoint {

// The values of one random tensor, generated chunk by chunk.
//
// Purpose: the same values on every machine. They come from integer draws, one multiplication and one
// addition in double; they are uniform rather than normal because implementations of the logarithm differ.
// Threads: each object is used by one thread.

// A uniform distribution over [center - half_width, center + half_width).
struct Spread {
  double center = 0;
  double half_width = 0;
};

class RandomTensor {
 public:
  RandomTensor(uint64_t seed, absl::string_view name, Spread spread);

  // Appends the next `count` values to `bytes`. REQUIRES: `count` is even, except in the last call.
  void Append(int64_t count, worker::DType dtype, std::string& bytes);

 private:
  Rng rng_;
  const Spread spread_;
};

// Rounds to the nearest value, ties to even, as hardware does.
uint16_t RoundToBF16(float value);
uint16_t RoundToF16(float value);

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
