// The TLS of a server, out of files that may be replaced while it runs.
//
// Purpose: OpenSSL and httplib read their files once. Here they are looked at with new connections, every
// kTlsReload; while they cannot be used (half a pair, not PEM) what was read last stays in force, and the log
// says so. TLS 1.2 and 1.3. A handshake that fails is a line in the log (RefusalLog). Threads: any.
#ifndef BFIO_COMMON_HTTP_RELOADED_TLS_H_
#define BFIO_COMMON_HTTP_RELOADED_TLS_H_

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio {

class ReloadedTls {
 public:
  using Context = std::shared_ptr<SSL_CTX>;

  // PEM files: a certificate with its chain, its key, and the CAs one of which must have signed a caller's
  // certificate; without `ca` none is required. INVALID_ARGUMENT when they are not usable.
  static absl::StatusOr<std::unique_ptr<ReloadedTls>> Load(std::string cert, std::string key,
                                                           std::string ca = "");

  // For the next connection.
  Context Current();

 private:
  ReloadedTls(std::string cert, std::string key, std::string ca)
      : cert_(std::move(cert)), key_(std::move(key)), ca_(std::move(ca)) {}
  absl::StatusOr<Context> Read() const;
  // What a connection takes from the context that it begins with.
  void SetRules(SSL_CTX& context) const;
  // Distinguishes one version of the files from the next.
  std::string Stamp() const;

  const std::string cert_, key_, ca_;
  Mutex mutex_;
  Context context_ ABSL_GUARDED_BY(mutex_);
  std::string stamp_ ABSL_GUARDED_BY(mutex_);
  // Of the files that could not be used.
  std::string told_ ABSL_GUARDED_BY(mutex_);
  absl::Time looked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_RELOADED_TLS_H_
