// Routes gRPC's log into the program's log. Errors that gRPC logs (a port in use, a peer that disconnects)
// are already reported by bfio's own code, so gRPC's lines appear only with --log_level=debug. Only gRPC's
// log reports failed TLS handshakes and unusable certificates; these become a bounded number of warnings
// (RefusalLog) with the reason, but without the peer, which gRPC does not report. Protobuf's lines, of which
// any peer can cause one with each message, appear only with --log_level=debug, too. Threads: call
// InstallGrpcLog once, early, from main.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace bfio {

void InstallGrpcLog();

// Number of failed TLS handshakes since InstallGrpcLog.
uint64_t FailedHandshakes();

// The reason for which a TLS connection failed, if gRPC's message reports that: "certificate verify failed".
std::optional<std::string> TlsRefusal(absl::string_view grpc_message);

// Whether the message reports that files are unusable as certificate, key or CA.
bool IsUnusableCertificate(absl::string_view grpc_message);

}  // namespace bfio
