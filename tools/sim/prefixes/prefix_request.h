// One request of the simulation of prefix caches.
//
// Purpose: what engine model, dispatchers and workload share. Plain data. Threads: any. Units: tokens,
// seconds.
#ifndef BFIO_TOOLS_SIM_PREFIXES_PREFIX_REQUEST_H_
#define BFIO_TOOLS_SIM_PREFIXES_PREFIX_REQUEST_H_

#include <cstdint>
#include <vector>

#include "router/core/model/request.h"

namespace bfio::sim {

// Tokens of a block of an engine's KV memory, as in vLLM.
inline constexpr int64_t kEngineBlockTokens = 16;

struct PrefixRequest {
  core::RequestId id = 0;
  double arrived_s = 0;
  int64_t prompt_tokens = 0;
  // That it generates, at least 1; only the engine model knows it.
  int64_t output_tokens = 0;
  // The client's bound.
  int64_t max_new_tokens = 0;
  // Names of the whole blocks of prompt and output together: equal if all tokens up to there are.
  std::vector<uint64_t> blocks;
  // The prompt's, consistent with `blocks`: the name of its i-th block is that of the engine block that ends
  // there.
  core::PrefixBlocks prefix;
  int64_t session = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_PREFIXES_PREFIX_REQUEST_H_
