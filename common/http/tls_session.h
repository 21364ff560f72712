// TLS on connections that were accepted as they are.
//
// Purpose: httplib's own TLS server has none of connection.h's bounds. Threads: one, its connection's.
#ifndef BFIO_COMMON_HTTP_TLS_SESSION_H_
#define BFIO_COMMON_HTTP_TLS_SESSION_H_

#include <openssl/ssl.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/http/reloaded_tls.h"

namespace bfio {

class TlsSession {
 public:
  // Shakes hands on a socket, which does not block from here on; nothing when the peer does not, not by `by`,
  // or `go_on` gives up.
  static std::unique_ptr<TlsSession> Accept(ReloadedTls& tls, int socket, absl::Time by,
                                            absl::FunctionRef<bool()> go_on);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Bytes read or written, at least one; -1 when the connection is broken, `by` (of MonotonicNow) has passed
  // or `go_on` says so. Read: 0 at the peer's orderly end. Write: 0 for no bytes alone.
  ssize_t Read(char* to, size_t size, absl::Time by, absl::FunctionRef<bool()> go_on);
  ssize_t Write(const char* from, size_t size, absl::Time by, absl::FunctionRef<bool()> go_on);
  // Bytes that were read from the socket and that poll() does not see.
  bool Pending() const { return SSL_pending(ssl_) > 0; }
  // The names in the certificate that the peer has shown and that was checked: DNS names of the subject's
  // alternatives, or, without any, its common name. Empty without a certificate.
  std::vector<std::string> PeerNames() const;
  // Tells the peer that nothing follows, without waiting for it.
  void Close();

 private:
  TlsSession(SSL* ssl, int socket) : ssl_(ssl), socket_(socket) {}
  // Does `act` until it succeeds, fails permanently or time is up; its last result.
  template <typename Act>
  int Drive(absl::Time by, absl::FunctionRef<bool()> go_on, Act act);

  SSL* const ssl_;
  const int socket_;
  // OpenSSL wants nothing more of a session that has failed.
  bool broken_ = false;
};

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_TLS_SESSION_H_
