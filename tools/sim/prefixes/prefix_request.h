// One request of the simulation of prefix caches.
//
// Purpose: data shared by engine model, dispatchers and workload. Plain data. Threads: any. Units: tokens,
// seconds.
#ifndef BFIO_TOOLS_SIM_PREFIXES_PREFIX_REQUEST_H_
#define BFIO_TOOLS_SIM_PREFIXES_PREFIX_REQUEST_H_

#include <cstdint>
#include <vector>

#include "router/core/model/request.h"

namespace bfio::sim {

// Tokens per block of an engine's KV memory, as in vLLM.
inline constexpr int64_t kEngineBlockTokens = 16;

struct PrefixRequest {
  core::RequestId id = 0;
  double arrived_s = 0;
  int64_t prompt_tokens = 0;
  // Tokens that it will generate, at least 1; visible only to the engine model.
  int64_t output_tokens = 0;
  // The limit in the client's request.
  int64_t max_new_tokens = 0;
  // Names of the whole blocks of prompt and output; each name identifies all tokens up to the block's end.
  std::vector<uint64_t> blocks;
  // Names of the prompt's blocks as the router sees them, consistent with `blocks`: the i-th name is that of
  // the engine block with the same end.
  core::PrefixBlocks prefix;
  int64_t session = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_PREFIXES_PREFIX_REQUEST_H_
