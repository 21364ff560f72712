// bfio.v1.GenerateRequest as a ClientRequest: checked and converted here, and nowhere else. All values that
// are accepted here are in range. Fields unknown to this version are dropped. Pure; any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "bfio/v1/inference.pb.h"
#include "router/requests/limits.h"
#include "router/requests/request.h"

namespace bfio::router {

// `request_id` and `tenant` replace those of the message. INVALID_ARGUMENT naming field, value and limit. A
// bare resume is converted with only the fields that matter for it.
absl::StatusOr<ClientRequest> ToClientRequest(const v1::GenerateRequest& request, std::string request_id,
                                              std::string tenant, const RequestLimits& limits);

inline absl::StatusOr<ClientRequest> ToClientRequest(const v1::GenerateRequest& request,
                                                     const RequestLimits& limits) {
  return ToClientRequest(request, request.request_id(), request.tenant(), limits);
}

}  // namespace bfio::router
