#include "tools/sim/run/dispatcher.h"

#include <utility>

#include "tools/sim/run/instant_dispatcher.h"
#include "tools/sim/run/pool_dispatcher.h"

namespace bfio::sim {

absl::StatusOr<std::unique_ptr<Dispatcher>> MakeDispatcher(const SimOptions& options,
                                                           std::vector<core::WorkerSpec> workers) {
  return options.dispatch == "instant" ? InstantDispatcher::Create(options, std::move(workers))
                                       : PoolDispatcher::Create(options, std::move(workers));
}

}  // namespace bfio::sim
