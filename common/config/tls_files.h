// Where a program's certificates are; common/net/tls.h uses them. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio {

// Paths of PEM files: this end's certificate (with its chain) and key, and the CAs that may sign the peer's.
// A server needs certificate and key; with `ca` it accepts only clients with a certificate. A client needs
// `ca`, and certificate and key if the server requires them.
struct TlsFiles {
  std::string cert;
  std::string key;
  std::string ca;
  bool enabled() const { return !cert.empty() || !key.empty() || !ca.empty(); }
  bool operator==(const TlsFiles&) const = default;
};

enum class TlsEnd { kServer, kClient };

// Parses "cert=FILE,key=FILE,ca=FILE" or some of these; INVALID_ARGUMENT otherwise.
absl::StatusOr<TlsFiles> ParseTlsFiles(absl::string_view text);

}  // namespace bfio
