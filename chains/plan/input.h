// The input of bfio_plan: a model, and the servers for it. Threads: any, no state.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "chains/core/server_pool.h"

namespace bfio::plan {

// A model's sizes: {"blocks": 70, "block_gb": 1.32, "cache_gb": 0.11}. A block is a layer; cache_gb is for
// one job in one block. Embeddings are not counted: state the servers' memory without them. GB are 10^9
// bytes. INVALID_ARGUMENT, naming `source` and the field.
absl::StatusOr<core::ChainService> ParseModel(absl::string_view text, absl::string_view source);

// The servers for a model: {"servers": [{"name": "a100", "count": 2, "memory_gb": 40, "block_ms": 175,
// "communication_ms": 760}, ...]}, with the times of a mean job in one block and of all its messages. `count`
// equal servers get numbers appended to their name; no two names may be equal. INVALID_ARGUMENT, naming
// `source`, the server and the field.
absl::StatusOr<std::vector<core::ChainServer>> ParsePool(absl::string_view text, absl::string_view source,
                                                         const core::ChainService& model);

}  // namespace bfio::plan
