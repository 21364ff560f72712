// Converts between absl::Status, used inside, and grpc::Status, used on the wire, with their RetryInfo. One
// conversion for all programs. The codes have the same numbers on both sides. A retry delay is a payload
// inside (common/base/retry_delay.h) and google.rpc.RetryInfo in `grpc-status-details-bin` on the wire, where
// any gRPC client expects it. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/retry_delay.h"
#include "grpcpp/support/status.h"

namespace bfio {

// The retry delay and payloads of protobuf types ("type.googleapis.com/...") become details; other payloads
// are dropped.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Details become payloads, RetryInfo the retry delay. Details that do not parse and negative delays are
// dropped. A code that gRPC does not define becomes UNKNOWN.
absl::Status FromGrpcStatus(const grpc::Status& status);

// The delay in the peer's RetryInfo; absent when there is none, or it is negative or does not parse.
std::optional<absl::Duration> GetRetryDelay(const grpc::Status& status);

// Such as "RESOURCE_EXHAUSTED"; for reports.
std::string StatusCodeName(grpc::StatusCode code);

}  // namespace bfio
