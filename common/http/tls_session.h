// TLS on accepted connections. Httplib's own TLS server has none of connection.h's bounds. Threads: the
// connection's thread.
#pragma once

#include <openssl/ssl.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/http/reloaded_tls.h"

namespace bfio {

// The events (poll.h) that occurred within `patience`; 0: none.
short PollSocket(int socket, short events, absl::Duration patience);

// The same until `by` (of MonotonicNow). `go_on` is called several times a second, and false ends the wait.
// Checks the socket at least once.
short AwaitSocket(int socket, short events, absl::Time by, absl::FunctionRef<bool()> go_on);

class TlsSession {
 public:
  // Performs the handshake on a socket, which is non-blocking from now on. Null when it fails, `by` passes,
  // or `go_on` returns false.
  static std::unique_ptr<TlsSession> Accept(ReloadedTls& tls, int socket, absl::Time by,
                                            absl::FunctionRef<bool()> go_on);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Bytes read or written, at least one; -1 when the connection is broken, `by` (of MonotonicNow) has passed
  // or `go_on` returns false. Read: 0 at the peer's orderly end. Write: 0 only for 0 bytes.
  ssize_t Read(char* to, size_t size, absl::Time by, absl::FunctionRef<bool()> go_on);
  ssize_t Write(const char* from, size_t size, absl::Time by, absl::FunctionRef<bool()> go_on);
  // Whether bytes have been read from the socket that poll() does not report.
  bool Pending() const { return SSL_pending(ssl_) > 0; }
  // The names in the peer's verified certificate: DNS names of the subject alternatives, or, if there are
  // none, the common name. Empty without a certificate.
  std::vector<std::string> PeerNames() const;
  // Tells the peer that nothing follows, without waiting for it.
  void Close();

 private:
  TlsSession(SSL* ssl, int socket) : ssl_(ssl), socket_(socket) {}
  // Repeats `act` until it succeeds, fails permanently or time is up; returns its last result.
  template <typename Act>
  int Drive(absl::Time by, absl::FunctionRef<bool()> go_on, Act act);

  SSL* const ssl_;
  const int socket_;
  // A failed session must not be used with OpenSSL any more.
  bool broken_ = false;
};

}  // namespace bfio
