#include "common/http/tls_session.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "common/base/clock.h"

namespace bfio {
namespace {

std::string TextOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

std::vector<std::string> DnsNames(const X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  std::vector<std::string> found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) found.push_back(TextOf(name->d.dNSName));
  }
  return found;
}

constexpr absl::Duration kGoOnPeriod = absl::Milliseconds(200);

}  // namespace

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
  SSL* const ssl = SSL_new(tls.Current().get());  // keeps a reference to the context
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
  // OpenSSL requires an abandoned write to be repeated with the same bytes.
  if (done <= 0) broken_ = true;
  return done > 0 ? done : -1;
}

std::vector<std::string> TlsSession::PeerNames() const {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get1_peer_certificate(ssl_), &X509_free);
  if (certificate == nullptr) return {};
  std::vector<std::string> names = DnsNames(certificate.get());
  const X509_NAME* subject = X509_get_subject_name(certificate.get());
  const int at = names.empty() ? X509_NAME_get_index_by_NID(subject, NID_commonName, -1) : -1;
  if (at >= 0) names.push_back(TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))));
  return names;
}

void TlsSession::Close() {
  if (!broken_ && SSL_is_init_finished(ssl_) == 1) SSL_shutdown(ssl_);
  ERR_clear_error();
}

short PollSocket(int socket, short events, absl::Duration patience) {
  pollfd entry = {.fd = socket, .events = events, .revents = 0};
  const int64_t ms = std::clamp<int64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(patience, absl::Milliseconds(1))), 0, 24 * 3600 * 1000);
  const absl::Time until = MonotonicNow() + absl::Milliseconds(ms);
  for (;;) {
    const absl::Duration left = std::max(until - MonotonicNow(), absl::ZeroDuration());
    const int ready =
        poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 ? entry.revents : short{0};
  }
}

short AwaitSocket(int socket, short events, absl::Time by, absl::FunctionRef<bool()> go_on) {
  for (;;) {
    const absl::Duration left = by - MonotonicNow();
    const short come = PollSocket(socket, events, std::min(left, kGoOnPeriod));
    if (come != 0 || left <= kGoOnPeriod || !go_on()) return come;
  }
}

}  // namespace bfio
