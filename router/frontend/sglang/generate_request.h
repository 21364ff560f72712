// sglang.grpc.scheduler.GenerateRequest as domain requests: checked and converted here, and nowhere else.
//
// Purpose: all values that are accepted here are in range. A field that bfio's workers do not support is
// refused by name; a field that this version does not declare is refused by number. Pure; any thread.
#ifndef BFIO_ROUTER_FRONTEND_SGLANG_GENERATE_REQUEST_H_
#define BFIO_ROUTER_FRONTEND_SGLANG_GENERATE_REQUEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "engines/sglang.pb.h"
#include "router/frontend/gateway/request_fields.h"

namespace bfio::router::sglang {

namespace pb = ::sglang::grpc::scheduler;

// A request that passes (RequestContext::passes) is not checked for errors that the engine detects itself.
// INVALID_ARGUMENT naming field, value and limit; UNAVAILABLE for a request without max_new_tokens while no
// worker has reported its longest sequence.
absl::StatusOr<gateway::ConvertedRequest> Convert(pb::GenerateRequest request, std::string tenant,
                                                  const gateway::RequestContext& context);

}  // namespace bfio::router::sglang

#endif  // BFIO_ROUTER_FRONTEND_SGLANG_GENERATE_REQUEST_H_
