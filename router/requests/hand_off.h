// The prompt of a request, computed by one rank for another (disaggregated prefill). The KV stays on the
// first rank until the second has fetched it. It is sent to one rank only: once fetched, or after the lease
// of the engine that keeps it, its blocks are used for other prompts, and an engine that fetches them
// generates wrong tokens without an error. Plain data. Threads: any; never changed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace bfio::router {

// How long a hand-off may wait for a rank. vLLM keeps blocks for 30 s (kv_lease_duration, the NIXL
// connector); the rest is for the way there, and for a server that is late.
inline constexpr absl::Duration kHandOffAge = absl::Seconds(20);
// After so many hand-offs that came to nothing, a request is computed where it decodes.
inline constexpr int kMostHandOffs = 3;
// Most bytes of a hand-off's parameters: NIXL's name a block of 16 tokens with up to 9.
inline constexpr size_t kHandOffBytes = 16 << 10, kHandOffBytesPerToken = 4;

struct RequestHandOff {
  // What the engine that decodes needs, in the connector's form; empty: the engine has handed nothing over.
  std::string parameters;
};
using HandOffPtr = std::shared_ptr<const RequestHandOff>;

}  // namespace bfio::router
