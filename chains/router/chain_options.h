// Settings of the pool of servers that serve parts of a model. Plain data.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "chains/core/server_pool.h"

namespace bfio::router {

struct ChainOptions {
  // Number of servers that the first composition waits for; 0: no pool, no server may join.
  int32_t servers = 0;
  // Upper bound of a chain's concurrent requests; less if memory is short.
  int32_t slots = 8;
  // Upper bound of a request's prompt + output, in tokens.
  int64_t sequence_tokens = 2048;
  // Delay from a change of the free servers to the composition.
  absl::Duration settle = absl::Milliseconds(300);
  // Time within which all servers of a chain must have loaded their parts.
  absl::Duration load_timeout = absl::Minutes(2);
  // Upper bound of the time that a step may take around a chain.
  absl::Duration step_timeout = absl::Seconds(10);
  // Compose with the servers' measurements; otherwise all count as equally fast.
  bool use_times = true;
  // The mean request, in tokens.
  core::JobShape job = {512, 128};
  // Folder to which the measured pool is written; empty: not written.
  std::string plan_folder;
};

}  // namespace bfio::router
