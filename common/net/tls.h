// TLS for both ends of a link, from files that may be replaced while the program runs. Certificates are
// renewed and CAs replaced without a restart: the files are checked every kTlsReload, and new connections use
// the last version that is usable. While the files are not (half a pair, not PEM, a pipe), that is logged.
// Open connections are not affected. TLS 1.2 and 1.3, otherwise OpenSSL's defaults. Threads: any; gRPC has a
// thread for each set of files, and all sets together have one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/config/tls_files.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace bfio {

inline constexpr absl::Duration kTlsReload = absl::Seconds(1);

// INVALID_ARGUMENT or NOT_FOUND, naming flag ("--" + `flag`) and file, unless the needed files exist, are
// PEM, and key and certificate match. Warns of keys that all users may read and of certificates that expire
// soon.
absl::Status CheckTlsFiles(const TlsFiles& files, absl::string_view flag, TlsEnd end);

// Paths of this process that lead to the last usable version of the files. They are opened and read without
// waiting.
TlsFiles FollowTlsFiles(const TlsFiles& files);

// When the first certificate of a PEM file expires; absent when none can be read.
std::optional<absl::Time> CertificateExpiry(const std::string& path);

// Plain text if no files are given. REQUIRES: CheckTlsFiles was OK.
std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TlsFiles& files);
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const TlsFiles& files);
// As above, and each call presents the bearer token in `token_file`, which is read again every kTlsReload; an
// unusable file is logged and leaves the last token in use. REQUIRES: `files` are given.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const TlsFiles& files,
                                                             const std::string& token_file);

// The names in the peer's verified certificate: DNS names of the subject alternatives, or, if there are none,
// the common name. Empty without a verified certificate.
std::vector<std::string> PeerNames(const grpc::AuthContext& peer);

}  // namespace bfio
