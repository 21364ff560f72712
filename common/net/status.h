// absl::Status inside, grpc::Status on the wire, and the RetryInfo that travels with both.
//
// Purpose: one conversion for all programs. The codes are the same numbers on both sides. RetryInfo is an
// absl payload inside and google.rpc.RetryInfo in `grpc-status-details-bin` outside, where any gRPC client
// looks for it. Pure; any thread.
#ifndef BFIO_COMMON_NET_STATUS_H_
#define BFIO_COMMON_NET_STATUS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"

namespace bfio {

// Payloads of protobuf types ("type.googleapis.com/...") become details; others stay inside.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Details become payloads; details that do not parse are dropped. A code gRPC does not define becomes
// UNKNOWN.
absl::Status FromGrpcStatus(const grpc::Status& status);

// Says when a retry makes sense. REQUIRES: !status.ok(), delay >= 0.
void SetRetryDelay(absl::Status& status, absl::Duration delay);

// What SetRetryDelay or the other end's RetryInfo said; nothing when it is absent, negative or does not
// parse.
std::optional<absl::Duration> GetRetryDelay(const absl::Status& status);
std::optional<absl::Duration> GetRetryDelay(const grpc::Status& status);

// "RESOURCE_EXHAUSTED", for reports.
std::string StatusCodeName(grpc::StatusCode code);

}  // namespace bfio

#endif  // BFIO_COMMON_NET_STATUS_H_
