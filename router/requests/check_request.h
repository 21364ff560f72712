// Whether a request is within the router's limits, whatever protocol it came by.
//
// Purpose: every edge that makes a ClientRequest calls this, so that what gets past it is in range. What only
// a wire message can get wrong (a malformed duration, a missing prompt) its edge checks. Pure; any thread.
#ifndef BFIO_ROUTER_REQUESTS_CHECK_REQUEST_H_
#define BFIO_ROUTER_REQUESTS_CHECK_REQUEST_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "router/requests/limits.h"
#include "router/requests/request.h"

namespace bfio::router {

// INVALID_ARGUMENT: "FIELD is VALUE; must be LIMIT".
template <typename Value, typename Limit>
absl::Status OutOfRange(absl::string_view field, const Value& value, const Limit& limit) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; must be ", limit));
}

// A resume of a request that the router has: the prompt and its settings are not repeated.
inline bool IsBareResume(const ClientRequest& request) {
  return request.resume_from.has_value() && !request.has_prompt();
}

// INVALID_ARGUMENT naming field, value and limit.
absl::Status CheckRequest(const ClientRequest& request, const RequestLimits& limits);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_CHECK_REQUEST_H_
