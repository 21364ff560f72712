#include "tools/sim/run/dispatcher.h"

#include <utility>

#include "tools/sim/run/instant_dispatcher.h"
#include "tools/sim/run/pool_dispatcher.h"

namespace bfio::sim {

absl::StatusOr<std::unique_ptr<core::Policy>> MakePolicy(const SimOptions& options) {
  core::PolicyOptions policy_options;
  policy_options.seed = options.seed;
  policy_options.horizon = options.horizon;
  policy_options.objective = options.objective;
  policy_options.discount = options.discount;
  policy_options.wait_ratio = options.wait_ratio;
  return core::MakePolicy(options.policy, policy_options);
}

absl::StatusOr<std::unique_ptr<Dispatcher>> MakeDispatcher(const SimOptions& options,
                                                           std::vector<core::WorkerSpec> workers) {
  return options.dispatch == "instant" ? InstantDispatcher::Create(options, std::move(workers))
                                       : PoolDispatcher::Create(options, std::move(workers));
}

}  // namespace bfio::sim
