// Which chain an arriving job goes to: JFFC and its rivals.
//
// Purpose: one interface for the rules that balance over composed chains: Join-the-Fastest-Free-Chain
// (Algorithm 3 of "Serving Chain-structured Jobs with Large Memory Footprints") and the rules it is compared
// with, extended to chains that serve several jobs at once. Whoever drives it keeps the queues: a job given
// to a full chain waits in that chain's own queue, first come first served; one given to nobody waits in a
// central queue, whose head goes to the first chain that has a place.
// The rules live here and not in router/core/policy because they decide for one job at its arrival and know
// neither steps nor loads.
// Deterministic for the seed. Threads: one at a time.
#ifndef BFIO_ROUTER_CORE_CHAIN_DISPATCHER_H_
#define BFIO_ROUTER_CORE_CHAIN_DISPATCHER_H_

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

// The central queue.
inline constexpr int32_t kCentralQueue = -1;

class ChainDispatcher {
 public:
  virtual ~ChainDispatcher() = default;

  // REQUIRES: chains fastest first, at least one. kCentralQueue only where no chain is free.
  virtual int32_t OnArrival(absl::Span<const ChainView> chains) = 0;
};

// jffc    the fastest chain with a place, else the central queue
// sa_jsq  of the chains with a place those with fewest jobs, of them the fastest, else the central queue
// sed     the smallest expected delay, 1/mu + max(0, Z - c + 1) / (mu c); queues of their own
// jsq     fewest jobs, ties at random; queues of their own
// jiq     an idle chain at random, else one with a place at random, else the central queue
const std::vector<std::string>& ChainDispatcherNames();

// INVALID_ARGUMENT names those that are known.
absl::StatusOr<std::unique_ptr<ChainDispatcher>> MakeChainDispatcher(absl::string_view name, uint64_t seed);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_CHAIN_DISPATCHER_H_
