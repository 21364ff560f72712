// Reads the router's admin API for the load generator.
#ifndef BFIO_TOOLS_LOADGEN_ADMIN_H_
#define BFIO_TOOLS_LOADGEN_ADMIN_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/login.h"
#include "grpcpp/channel.h"
#include "tools/loadgen/barrier.h"

namespace bfio::loadgen {

// Calls Admin.GetClusterState once; blocks for at most `timeout`. Errors are those of the RPC.
absl::StatusOr<BarrierReading> ReadBarrier(const std::shared_ptr<grpc::Channel>& admin, const Login& login,
                                           absl::Duration timeout);

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_ADMIN_H_
