// The right to resume or abort a live request: tenant and secret must match.
//
// Purpose: one place for the comparison of secrets, which takes constant time for strings of equal
// length. Pure; any thread.
#ifndef BFIO_ROUTER_REQUESTS_RESUME_RIGHTS_H_
#define BFIO_ROUTER_REQUESTS_RESUME_RIGHTS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "router/requests/request.h"

namespace bfio::router {

// `resume` is the resume that a client has sent. REQUIRES, here and below: the caller's tenant is the
// request's, as of every request that was found by tenant and request_id.
bool MayResume(const ClientRequest& request, const ClientRequest& resume);

bool MayAbort(const ClientRequest& request, absl::string_view resume_token);

// The seed of a resumable request that names none: the same in every router process, so that a request that
// is started again generates the same tokens.
uint64_t SeedOfName(absl::string_view request_id);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_RESUME_RIGHTS_H_
