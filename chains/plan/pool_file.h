// Reads the servers for a model from a file. Reads {"servers": [{"name": "a100", "count": 2, "memory_gb": 40,
// "tflops": 120, "memory_gb_per_s": 1020, "rtt_ms": 20}, ...]} and computes servers with times. The measured
// "block_ms" (a mean job in one block) may replace tflops and memory_gb_per_s; the measured
// "communication_ms" (of a mean job) may replace rtt_ms. `count` equal servers get numbers appended to their
// name; no two names may be equal. Threads: any, no state.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "chains/core/server_pool.h"
#include "chains/plan/model_file.h"

namespace bfio::plan {

struct JobOptions {
  core::JobShape job = {2000, 20};
  // Overhead of a block per job, and of a message.
  double block_overhead_s = 1e-3;
  double message_overhead_s = 18e-3;
};

// INVALID_ARGUMENT, naming `source`, the server and the field.
absl::StatusOr<std::vector<core::ChainServer>> ParsePool(absl::string_view text, absl::string_view source,
                                                         const ModelSizes& model, const JobOptions& options);

}  // namespace bfio::plan
