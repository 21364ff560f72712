#include "tools/openai/tls.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/spdlog.h"
#include "common/net/tls.h"
#include "tools/openai/socket_poll.h"

namespace bfio::openai {
namespace {

std::string OpenSslError() {
  char text[256] = "unknown error";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

}  // namespace

TlsSession::~TlsSession() {
  SSL_free(ssl_);
}

template <typename Act>
int TlsSession::Drive(absl::Time by, Act act) {
  while (!broken_) {
    ERR_clear_error();
    const int done = act();
    if (done > 0) return done;
    const int error = SSL_get_error(ssl_, done);
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    const short wanted = error == SSL_ERROR_WANT_READ ? POLLIN : error == SSL_ERROR_WANT_WRITE ? POLLOUT : 0;
    broken_ = wanted == 0;
    if (broken_ || Poll(socket_, wanted, by - MonotonicNow()) == 0) break;
  }
  return -1;
}

ssize_t TlsSession::Read(char* to, size_t size, absl::Time by) {
  const int most = static_cast<int>(std::min<size_t>(size, INT_MAX));
  return Drive(by, [&] { return SSL_read(ssl_, to, most); });
}

ssize_t TlsSession::Write(const char* from, size_t size, absl::Time by) {
  const int most = static_cast<int>(std::min<size_t>(size, INT_MAX));
  if (most == 0) return 0;
  const int done = Drive(by, [&] { return SSL_write(ssl_, from, most); });
  // A write that was given up would have to be repeated with the same bytes.
  if (done <= 0) broken_ = true;
  return done > 0 ? done : -1;
}

void TlsSession::Close() {
  if (!broken_ && SSL_is_init_finished(ssl_) == 1) SSL_shutdown(ssl_);
  ERR_clear_error();
}

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(std::string cert, std::string key) {
  std::unique_ptr<TlsContext> result(new TlsContext(std::move(cert), std::move(key)));
  std::string stamp = result->Stamp();
  absl::StatusOr<Context> context = result->Read();
  if (!context.ok()) return context.status();
  MutexLock lock(&result->mutex_);
  result->context_ = *std::move(context);
  result->stamp_ = std::move(stamp);
  result->looked_ = MonotonicNow();
  return result;
}

absl::StatusOr<TlsContext::Context> TlsContext::Read() const {
  const Context context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return absl::InternalError(OpenSslError());
  // A key under a password is refused, and nobody asked for it.
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return -1; });
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (SSL_CTX_use_certificate_chain_file(context.get(), cert_.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context.get(), key_.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a certificate and its key: ", cert_, ", ", key_, ": ", OpenSslError()));
  }
  return context;
}

std::string TlsContext::Stamp() const {
  std::string stamp;
  for (const std::string& path : {cert_, key_}) {
    struct stat file = {};
    if (stat(path.c_str(), &file) != 0) continue;
    absl::StrAppend(&stamp, file.st_dev, ":", file.st_ino, ":", file.st_size, ":", file.st_ctim.tv_sec, ".",
                    file.st_ctim.tv_nsec, " ");
  }
  return stamp;
}

TlsContext::Context TlsContext::Current() {
  MutexLock lock(&mutex_);
  const absl::Time now = MonotonicNow();
  if (now - looked_ < kTlsReload) return context_;
  looked_ = now;
  std::string stamp = Stamp();
  if (stamp == stamp_) return context_;
  // Once for each version of the files, good or bad.
  stamp_ = std::move(stamp);
  if (absl::StatusOr<Context> context = Read(); context.ok()) {
    context_ = *std::move(context);
    spdlog::info("read the certificate {} again", cert_);
  } else {
    spdlog::error("{}; the one before stays in force", std::string(context.status().message()));
  }
  return context_;
}

std::unique_ptr<TlsSession> TlsContext::Accept(int socket, absl::Time by) {
  const Context context = Current();
  SSL* const ssl = SSL_new(context.get());  // keeps the context
  if (ssl == nullptr) return nullptr;
  std::unique_ptr<TlsSession> session(new TlsSession(ssl, socket));
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  if (SSL_set_fd(ssl, socket) != 1 || session->Drive(by, [&] { return SSL_accept(ssl); }) != 1)
    return nullptr;
  return session;
}

}  // namespace bfio::openai
