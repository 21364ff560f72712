// Checks that a network can be run.
//
// Purpose: everything that a run relies on is checked before it begins, with errors that name the field.
// Otherwise a run could hang, access memory out of bounds, or seem unstable. Pure. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_NETWORK_NETWORK_CHECK_H_
#define BFIO_TOOLS_SIM_NETWORK_NETWORK_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tools/sim/network/network.h"
#include "tools/sim/network/network_run.h"

namespace bfio::sim {

inline constexpr int32_t kMostEngines = 10'000;
// A Poisson draw takes time proportional to its mean.
inline constexpr double kMostMeanTokens = 1e6;
// Limit for each of: samples (which are kept), full batches, and arrivals of a type in a run.
inline constexpr double kMostEvents = 1e7;

// INVALID_ARGUMENT, naming the field with its type and call, unless the numbers are finite and in range,
// every call's engines exist, `after` names earlier calls, each once, and the scheduler exists and can form
// batches in the lanes of this order.
absl::Status CheckNetwork(const Network& network, const NetworkOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_NETWORK_CHECK_H_
