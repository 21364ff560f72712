// A model's memory and computation per block: from a checkpoint's config.json, or from hand-written sizes.
// Parses text to sizes. Hugging Face's config.json is supported for Llama, Mistral, Qwen2 and Qwen3 (dense,
// gated MLP, grouped heads) and for BLOOM; other families are rejected by name. A block is a layer.
// Embeddings are not counted: state the servers' memory without them. Hand-written sizes: {"blocks": 70,
// "block_gb": 1.32, "cache_gb": 0.11, "gflop_per_token": 5}, where cache_gb is for one job in one block, and
// gflop_per_token, for one block, may be absent. GB are 10^9 bytes. Threads: any, no state.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "chains/core/server_pool.h"

namespace bfio::plan {

struct ModelSizes {
  core::ChainService service;
  std::optional<double> gflop_per_token;
};

// How a checkpoint's numbers are stored, and the longest job. Not used for hand-written sizes.
struct StorageOptions {
  double weight_bytes = 2;       // per parameter; 0.5 for 4 bits
  double kv_bytes = 2;           // per value
  double context_tokens = 2048;  // tokens of each job for which cache is reserved
};

// INVALID_ARGUMENT, naming `source` and the field.
absl::StatusOr<ModelSizes> ParseModel(absl::string_view text, absl::string_view source,
                                      const StorageOptions& storage);

}  // namespace bfio::plan
