// Settings of the pool of servers that serve parts of a model. Plain data.
#ifndef BFIO_CHAINS_ROUTER_CHAIN_OPTIONS_H_
#define BFIO_CHAINS_ROUTER_CHAIN_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "chains/core/job_times.h"

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
  // Compose with what servers have measured; else all count as equally fast and near.
  bool use_times = true;
  // The mean request.
  core::JobShape job = {512, 128};
  // How long a composition that is due waits for what servers measure, all of them together.
  absl::Duration measure_timeout = absl::Seconds(3);
  // Where the measured pool is written; empty: nowhere.
  std::string plan_folder;
};

}  // namespace bfio::router

#endif  // BFIO_CHAINS_ROUTER_CHAIN_OPTIONS_H_
