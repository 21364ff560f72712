// absl::Status inside, grpc::Status on the wire, and the RetryInfo that travels with both.
//
// Purpose: one conversion for all programs. The codes are the same numbers on both sides. A retry delay is a
// payload of our own inside (common/base/retry_delay.h) and google.rpc.RetryInfo in `grpc-status-details-bin`
// outside, where any gRPC client looks for it. Pure; any thread.
#ifndef BFIO_COMMON_NET_STATUS_H_
#define BFIO_COMMON_NET_STATUS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/retry_delay.h"
#include "grpcpp/support/status.h"

namespace bfio {

// The retry delay and payloads of protobuf types ("type.googleapis.com/...") become details; others stay
// inside.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Details become payloads, RetryInfo the retry delay; what does not parse is dropped, and a negative delay. A
// code gRPC does not define becomes UNKNOWN.
absl::Status FromGrpcStatus(const grpc::Status& status);

// What the other end's RetryInfo says; nothing when it is absent, negative or does not parse.
std::optional<absl::Duration> GetRetryDelay(const grpc::Status& status);

// "RESOURCE_EXHAUSTED", for reports.
std::string StatusCodeName(grpc::StatusCode code);

}  // namespace bfio

#endif  // BFIO_COMMON_NET_STATUS_H_
