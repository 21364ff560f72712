// Can this network be run?
//
// Purpose: everything that a run relies on, said by name before it begins: what is not checked here would
// hang, reach past an array, or look like instability. Pure. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_NETWORK_NETWORK_CHECK_H_
#define BFIO_TOOLS_SIM_NETWORK_NETWORK_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tools/sim/network/network.h"
#include "tools/sim/network/network_run.h"

namespace bfio::sim {

inline constexpr int32_t kMostEngines = 10'000;
// A Poisson draw costs its mean.
inline constexpr double kMostMeanTokens = 1e6;
// Of samples, which are kept, of full batches and of a type's arrivals in a run.
inline constexpr double kMostEvents = 1e7;

// INVALID_ARGUMENT, naming the field with its type and call, unless the numbers are finite and in range,
// every call's engines exist, `after` names earlier calls, each once, and the scheduler exists and can form
// batches in this order's lanes.
absl::Status CheckNetwork(const Network& network, const NetworkOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_NETWORK_CHECK_H_
