#include "common/http/tls_session.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>

#include <algorithm>
#include <climits>

#include "common/base/clock.h"
#include "common/http/socket_poll.h"

namespace bfio {

TlsSession::~TlsSession() {
  SSL_free(ssl_);
}

template <typename Act>
int TlsSession::Drive(absl::Time by, absl::FunctionRef<bool()> go_on, Act act) {
  while (!broken_) {
    ERR_clear_error();
    const int done = act();
    if (done > 0) return done;
    const int error = SSL_get_error(ssl_, done);
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    const short wanted = error == SSL_ERROR_WANT_READ ? POLLIN : error == SSL_ERROR_WANT_WRITE ? POLLOUT : 0;
    broken_ = wanted == 0;
    if (broken_ || AwaitSocket(socket_, wanted, by, go_on) == 0) break;
  }
  return -1;
}

std::unique_ptr<TlsSession> TlsSession::Accept(ReloadedTls& tls, int socket, absl::Time by,
                                               absl::FunctionRef<bool()> go_on) {
  SSL* const ssl = SSL_new(tls.Current().get());  // keeps the context
  if (ssl == nullptr) return nullptr;
  SSL_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  std::unique_ptr<TlsSession> session(new TlsSession(ssl, socket));
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  if (SSL_set_fd(ssl, socket) != 1 || session->Drive(by, go_on, [&] { return SSL_accept(ssl); }) != 1)
    return nullptr;
  return session;
}

ssize_t TlsSession::Read(char* to, size_t size, absl::Time by, absl::FunctionRef<bool()> go_on) {
  const int most = static_cast<int>(std::min<size_t>(size, INT_MAX));
  return Drive(by, go_on, [&] { return SSL_read(ssl_, to, most); });
}

ssize_t TlsSession::Write(const char* from, size_t size, absl::Time by, absl::FunctionRef<bool()> go_on) {
  const int most = static_cast<int>(std::min<size_t>(size, INT_MAX));
  if (most == 0) return 0;
  const int done = Drive(by, go_on, [&] { return SSL_write(ssl_, from, most); });
  // A write that was given up would have to be repeated with the same bytes.
  if (done <= 0) broken_ = true;
  return done > 0 ? done : -1;
}

void TlsSession::Close() {
  if (!broken_ && SSL_is_init_finished(ssl_) == 1) SSL_shutdown(ssl_);
  ERR_clear_error();
}

}  // namespace bfio
