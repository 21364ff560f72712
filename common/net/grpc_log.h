// gRPC's own log, taken into ours.
//
// Purpose: what gRPC has to say (a taken port, a peer that hung up) is said by us where it matters, so its
// lines are for --log_level=debug; but failed TLS handshakes and certificates that could not be used are seen
// by no other code, and become a bounded number of warnings (RefusalLog). They have the reason; gRPC does not
// report the peer. Threads: InstallGrpcLog once, early, from main.
#ifndef BFIO_COMMON_NET_GRPC_LOG_H_
#define BFIO_COMMON_NET_GRPC_LOG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace bfio {

void InstallGrpcLog();

// TLS handshakes that have failed since then.
uint64_t FailedHandshakes();

// Why a TLS connection did not come about, if that is what gRPC's message says: "certificate verify failed".
std::optional<std::string> TlsRefusal(absl::string_view grpc_message);

// True when the message says that files could not be used as certificate, key or CA.
bool IsUnusableCertificate(absl::string_view grpc_message);

}  // namespace bfio

#endif  // BFIO_COMMON_NET_GRPC_LOG_H_
