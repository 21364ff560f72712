// TLS settings of one end, from files that may be replaced while it runs (FollowTlsFiles). OpenSSL and
// httplib read their files only once; here they are checked at each connection. TLS 1.2 and 1.3. A server
// logs failed handshakes (RefusalLog). Threads: any.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/config/tls_files.h"

namespace bfio {

class ReloadedTls {
 public:
  using Context = std::shared_ptr<SSL_CTX>;

  // INVALID_ARGUMENT when the files are unusable.
  static absl::StatusOr<std::unique_ptr<ReloadedTls>> Load(const TlsFiles& files, TlsEnd end);

  // The context for the next connection.
  Context Current();

 private:
  ReloadedTls(TlsFiles files, TlsEnd end) : files_(std::move(files)), end_(end) {}
  absl::StatusOr<Context> Read() const;
  // Sets what a connection takes from the context that it starts with.
  void SetRules(SSL_CTX& context) const;
  // Identifies the version of the files.
  std::string Stamp() const;

  const TlsFiles files_;
  const TlsEnd end_;
  Mutex mutex_;
  Context context_ ABSL_GUARDED_BY(mutex_);
  std::string stamp_ ABSL_GUARDED_BY(mutex_);
  // Version of the files that could not be used and were logged.
  std::string told_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio
