// Authorization to resume or abort a live request: tenant and secret must match. The one place that compares
// secrets; it takes constant time for strings of equal length. Pure; any thread.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "router/requests/request.h"

namespace bfio::router {

// `resume`: the resume that a client has sent. REQUIRES, here and below: the caller's tenant is the
// request's, as for every request that was found by tenant and request_id.
bool MayResume(const ClientRequest& request, const ClientRequest& resume);

bool MayAbort(const ClientRequest& request, absl::string_view resume_token);

// The seed of a resumable request without one. It is the same in every router process, so a restarted request
// generates the same tokens.
uint64_t SeedOfName(absl::string_view request_id);

}  // namespace bfio::router
