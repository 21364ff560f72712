// Settings of the pool of servers that serve parts of a model. Plain data.
#ifndef BFIO_ROUTER_SERVICE_CHAIN_OPTIONS_H_
#define BFIO_ROUTER_SERVICE_CHAIN_OPTIONS_H_

#include <cstdint>

#include "absl/time/time.h"

namespace bfio::router {

struct ChainOptions {
  // Servers that the first composition waits for; 0: no pool, nobody may join.
  int32_t servers = 0;
  // Requests at a time of a chain, at most; less where memory is short.
  int32_t slots = 8;
  // Largest prompt + output of one request.
  int64_t sequence_tokens = 2048;
  // From a change of the free servers to the composition.
  absl::Duration settle = absl::Milliseconds(300);
  // Within which all servers of a chain must have loaded their parts.
  absl::Duration load_timeout = absl::Minutes(2);
  // How long a step may take around a chain.
  absl::Duration step_timeout = absl::Seconds(10);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_SERVICE_CHAIN_OPTIONS_H_
