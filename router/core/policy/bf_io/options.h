// Settings of bf_io.
//
// Purpose: checks PolicyOptions where the policy is made. Threads: any, no state.
#ifndef BFIO_ROUTER_CORE_POLICY_BF_IO_OPTIONS_H_
#define BFIO_ROUTER_CORE_POLICY_BF_IO_OPTIONS_H_

#include "absl/status/statusor.h"
#include "router/core/policy/policy.h"
#include "router/core/solver/settings.h"

namespace bfio::core {

// Largest horizon that bf_io accepts.
inline constexpr int32_t kMaxHorizon = 500;

// INVALID_ARGUMENT, with the setting and its permitted values in the message.
absl::StatusOr<SolverSettings> BfIoSettings(const PolicyOptions& options);

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BF_IO_OPTIONS_H_
