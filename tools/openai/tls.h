// TLS on connections that were accepted as they are.
//
// Purpose: httplib's own TLS server has none of connection.h's bounds. Certificate and key come from files
// that may be replaced while the program runs: they are looked at with new connections, every kTlsReload, and
// while they cannot be used (half a pair, not PEM) what was read last stays in force, and the log says so.
// TLS 1.2 and 1.3, nobody's certificate is asked for. Threads: a TlsContext any; a TlsSession one, its
// connection's.
#ifndef BFIO_TOOLS_OPENAI_TLS_H_
#define BFIO_TOOLS_OPENAI_TLS_H_

#include <openssl/ssl.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio::openai {

class TlsSession {
 public:
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Bytes read or written, at least one; -1 when the connection is broken or `by` (of MonotonicNow) has
  // passed. Read: 0 at the peer's orderly end. Write: 0 for no bytes alone.
  ssize_t Read(char* to, size_t size, absl::Time by);
  ssize_t Write(const char* from, size_t size, absl::Time by);
  // Bytes that were read from the socket and that poll() does not see.
  bool Pending() const { return SSL_pending(ssl_) > 0; }
  // Tells the peer that nothing follows, without waiting for it.
  void Close();

 private:
  friend class TlsContext;
  TlsSession(SSL* ssl, int socket) : ssl_(ssl), socket_(socket) {}
  // Does `act` until it succeeds, fails for good or time is up; its last result.
  template <typename Act>
  int Drive(absl::Time by, Act act);

  SSL* const ssl_;
  const int socket_;
  // OpenSSL wants nothing more of a session that has failed.
  bool broken_ = false;
};

class TlsContext {
 public:
  // INVALID_ARGUMENT when the files do not do.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(std::string cert, std::string key);

  // Shakes hands on a socket, which does not block from here on; nothing when the peer does not, or not by
  // `by`.
  std::unique_ptr<TlsSession> Accept(int socket, absl::Time by);

 private:
  using Context = std::shared_ptr<SSL_CTX>;

  TlsContext(std::string cert, std::string key) : cert_(std::move(cert)), key_(std::move(key)) {}
  absl::StatusOr<Context> Read() const;
  // What tells one version of the files from the next.
  std::string Stamp() const;
  Context Current();

  const std::string cert_, key_;
  Mutex mutex_;
  Context context_ ABSL_GUARDED_BY(mutex_);
  std::string stamp_ ABSL_GUARDED_BY(mutex_);
  absl::Time looked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::openai

#endif  // BFIO_TOOLS_OPENAI_TLS_H_
