// An Abort RPC for which no caller waits.
//
// Purpose: ends a resumable request at the router when its caller has finished with it. Best effort within
// kAbortTimeout: a router that the RPC does not reach ends the request after its --client_timeout. Ownership:
// gRPC owns the call until it is done. Threads: any.
#ifndef BFIO_TOOLS_CLIENT_ABORT_CALL_H_
#define BFIO_TOOLS_CLIENT_ABORT_CALL_H_

#include "absl/time/time.h"
#include "bfio/v1/inference.pb.h"
#include "tools/client/link.h"
#include "tools/client/metadata.h"

namespace bfio::client {

inline constexpr absl::Duration kAbortTimeout = absl::Seconds(5);

void StartAbort(Link& link, const v1::AbortRequest& request, const Metadata& metadata);

}  // namespace bfio::client

#endif  // BFIO_TOOLS_CLIENT_ABORT_CALL_H_
