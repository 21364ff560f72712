// Rules of other routers, as far as they are public. Each sends a request to a rank as soon as it arrives.
//
//   direct_least_requests  to the rank with the fewest requests.
//   sglang_cache_aware     SGLang's gateway: if ranks' requests differ by more than 64 and a factor of 1.5,
//                          to the rank with the fewest; otherwise to the rank whose earlier prompts match
//                          most of this one, if that is more than 30 %; otherwise to the rank with the
//                          smallest tree of prompts. The tree's bound of 2^26 characters is 2^24 tokens here.
//   dynamo_kv              NVIDIA Dynamo's KV router at temperature 0: to the rank with the smallest sum of
//                          prompt blocks to compute and blocks of active requests' prompts, where each block
//                          counts once. The contents of the ranks' caches are known exactly.
//
// Threads: one.
#ifndef BFIO_TOOLS_SIM_PREFIXES_DIRECT_DISPATCHERS_H_
#define BFIO_TOOLS_SIM_PREFIXES_DIRECT_DISPATCHERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/sim/rank/engine_run.h"

namespace bfio::sim {

// Ranks fill the token budget. Null: no such rule.
std::unique_ptr<EngineDispatcher> MakeDirectDispatcher(const std::string& rule, int64_t token_budget,
                                                       ServeGroup* group,
                                                       const std::vector<ServeRequest>* requests);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_PREFIXES_DIRECT_DISPATCHERS_H_
