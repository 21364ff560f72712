// TLS for both ends of a link, out of files that may be replaced while the program runs.
//
// Purpose: certificates are renewed and CAs exchanged without a restart: the files are looked at every
// kTlsReload and new connections use what was read last. While the files cannot be used (half a pair, not
// PEM) new connections fail, and the log says so (grpc_log.h): nothing is let in by mistake. Connections that
// are open stay as they are. TLS 1.2 and 1.3, OpenSSL's defaults otherwise. Threads: any; gRPC has a thread
// of its own for each set of files.
#ifndef BFIO_COMMON_NET_TLS_H_
#define BFIO_COMMON_NET_TLS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace bfio {

inline constexpr absl::Duration kTlsReload = absl::Seconds(1);

// Paths of PEM files: this end's certificate (with its chain) and key, and the CAs one of which must have
// signed the other end's. A server needs certificate and key; with `ca` it admits only clients with a
// certificate. A client needs `ca`, and has certificate and key where the server asks for them.
struct TlsFiles {
  std::string cert;
  std::string key;
  std::string ca;
  bool enabled() const { return !cert.empty() || !key.empty() || !ca.empty(); }
};

enum class TlsEnd { kServer, kClient };

// Of "cert=FILE,key=FILE,ca=FILE" or some of these; INVALID_ARGUMENT otherwise.
absl::StatusOr<TlsFiles> ParseTlsFiles(absl::string_view text);

// INVALID_ARGUMENT or NOT_FOUND, naming flag ("--" + `flag`) and file, unless what is needed is there, PEM,
// and key and certificate are a pair. Warns of keys that all may read and of certificates that expire.
absl::Status CheckTlsFiles(const TlsFiles& files, absl::string_view flag, TlsEnd end);

// When the first certificate of a PEM file expires; nothing when there is none that can be read.
std::optional<absl::Time> CertificateExpiry(const std::string& path);

// Plain text where no files are given. REQUIRES: CheckTlsFiles was OK.
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TlsFiles& files);
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const TlsFiles& files);

// The names in the certificate with which the peer came: DNS names of the subject's alternatives, or, without
// any, its common name. Empty without a certificate that was checked.
std::vector<std::string> PeerNames(const grpc::AuthContext& peer);

}  // namespace bfio

#endif  // BFIO_COMMON_NET_TLS_H_
