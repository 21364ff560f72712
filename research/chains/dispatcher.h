// Assigns arriving jobs to chains: JFFC and the policies it is compared with.
//
// Purpose: one interface for the policies that balance over composed chains: Join-the-Fastest-Free-Chain
// (Algorithm 3 of "Serving Chain-structured Jobs with Large Memory Footprints") and the baselines, extended
// to chains that serve several jobs at the same time. The caller has the queues. A job assigned to a full
// chain waits in that chain's own queue, first come first served; a job without a chain waits in a central
// queue, whose head goes to the first chain with a free slot. jffc is also a policy of the router
// (router/core/policy/baselines). Deterministic for the seed. Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bfio::core {

struct ChainView {
  double rate = 0;       // mu of one job, per second
  int64_t capacity = 0;  // c
  int64_t jobs = 0;      // Z: in service and in its own queue

  bool free() const { return jobs < capacity; }
};

// No chain is free: the job waits in the central queue.
inline constexpr int32_t kCentralQueue = -1;

class ChainDispatcher {
 public:
  virtual ~ChainDispatcher() = default;

  // The index of a chain or kCentralQueue, which is returned only if no chain has a free slot. REQUIRES: at
  // least one chain, the fastest first.
  virtual int32_t OnArrival(absl::Span<const ChainView> chains) = 0;
};

// jffc    the fastest chain with a free slot, otherwise the central queue
// sa_jsq  of the chains with a free slot one with the fewest jobs, the fastest of these; otherwise the
//         central queue
// sed     the smallest expected delay, 1/mu + max(0, Z - c + 1) / (mu c); a queue per chain
// jsq     the fewest jobs, ties at random; a queue per chain
// jiq     an idle chain at random, otherwise one with a free slot at random, otherwise the central queue
const std::vector<std::string>& ChainDispatcherNames();

// INVALID_ARGUMENT, listing the known names, for an unknown one.
absl::StatusOr<std::unique_ptr<ChainDispatcher>> MakeChainDispatcher(absl::string_view name, uint64_t seed);

}  // namespace bfio::core
