// A server's TLS settings, from files that may be replaced while it runs (FollowTlsFiles). OpenSSL and
// httplib read their files only once; here they are checked when connections arrive. TLS 1.2 and 1.3. A
// failed handshake is logged (RefusalLog). Threads: any.
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

  // PEM files: a certificate with its chain, its key, and the CAs that may sign callers' certificates;
  // without `ca` no client certificate is required. INVALID_ARGUMENT when they are unusable.
  static absl::StatusOr<std::unique_ptr<ReloadedTls>> Load(std::string cert, std::string key,
                                                           std::string ca = "");

  // The context for the next connection.
  Context Current();

 private:
  explicit ReloadedTls(TlsFiles files)
      : cert_(std::move(files.cert)), key_(std::move(files.key)), ca_(std::move(files.ca)) {}
  absl::StatusOr<Context> Read() const;
  // Sets what a connection takes from the context that it starts with.
  void SetRules(SSL_CTX& context) const;
  // Identifies the version of the files.
  std::string Stamp() const;

  const std::string cert_, key_, ca_;
  Mutex mutex_;
  Context context_ ABSL_GUARDED_BY(mutex_);
  std::string stamp_ ABSL_GUARDED_BY(mutex_);
  // Version of the files that could not be used and were logged.
  std::string told_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio
