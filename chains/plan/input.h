// The input of bfio_plan: a model, and the servers for it. Threads: any, no state.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "chains/core/server_pool.h"

namespace bfio::plan {

// A model's memory and computation per block: from a checkpoint's config.json, or from hand-written sizes.
// Hugging Face's config.json is supported for Llama, Mistral, Qwen2 and Qwen3 (dense, gated MLP, grouped
// heads) and for BLOOM; other families are rejected by name. A block is a layer. Embeddings are not counted:
// state the servers' memory without them. Hand-written sizes: {"blocks": 70, "block_gb": 1.32, "cache_gb":
// 0.11, "gflop_per_token": 5}, where cache_gb is for one job in one block, and gflop_per_token, for one
// block, may be absent. GB are 10^9 bytes.
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

struct JobOptions {
  core::JobShape job = {2000, 20};
  // Overhead of a block per job, and of a message.
  double block_overhead_s = 1e-3;
  double message_overhead_s = 18e-3;
};

// The servers for a model: {"servers": [{"name": "a100", "count": 2, "memory_gb": 40, "tflops": 120,
// "memory_gb_per_s": 1020, "rtt_ms": 20}, ...]}, as servers with times. The measured "block_ms" (a mean job
// in one block) may replace tflops and memory_gb_per_s; the measured "communication_ms" (of a mean job) may
// replace rtt_ms. `count` equal servers get numbers appended to their name; no two names may be equal.
// INVALID_ARGUMENT, naming `source`, the server and the field.
absl::StatusOr<std::vector<core::ChainServer>> ParsePool(absl::string_view text, absl::string_view source,
                                                         const ModelSizes& model, const JobOptions& options);

}  // namespace bfio::plan
