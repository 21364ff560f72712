// Which chain an arriving job goes to: JFFC and its rivals.
//
// Purpose: one interface for the rules that balance over composed chains: Join-the-Fastest-Free-Chain
// (Algorithm 3 of "Serving Chain-structured Jobs with Large Memory Footprints") and the rules it is compared
// with, extended to chains that serve several jobs at once. The caller keeps the queues: a job given
// to a full chain waits in that chain's own queue, first come first served; one without a chain waits in a
// central queue, whose head goes to the first chain that has a place.
// jffc, sa_jsq and jiq are the router's policies of these names (router/core/policy/fastest_free). sed and
// jsq are no policies there: they let a request wait at a full chain while another has a free slot, and in
// the router requests wait in the pool alone. Among chains with free slots sed is jffc, and jsq is sa_jsq
// with its ties drawn. Deterministic for the seed. Threads: one at a time.
#ifndef BFIO_CHAINS_CORE_DISPATCHER_H_
#define BFIO_CHAINS_CORE_DISPATCHER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/core/policy/fastest_free/unit_rules.h"

namespace bfio::core {

using ChainView = UnitView;

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

#endif  // BFIO_CHAINS_CORE_DISPATCHER_H_
