// The prompt tokens that the workers of a group still have to compute, where prompts with equal prefixes
// share KV. A policy's input (Snapshot::prefixes). A prompt costs a worker only the tokens that its prefix
// cache does not hold, and waits for the prompts that the worker has not computed yet. Ownership: borrows the
// caches; valid during one Policy::Decide. Threads: one. Units: tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "router/core/model/request.h"
#include "router/core/prefix/prefix_caches.h"

namespace bfio::core {

struct PrefixView {
  // Null: no worker has a prefix cache.
  const PrefixCaches* caches = nullptr;
  // By worker: prompt tokens of the requests there that are neither computed nor expected to be cached.
  std::vector<int64_t> pending;
  // Mean output of requests that have ended; 0: no request has ended yet.
  double output_tokens = 0;
  // The share of recent prompt tokens that were expected in their workers' caches, 0 .. 1.
  double hit_share = 0;
};

}  // namespace bfio::core
