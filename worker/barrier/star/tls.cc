#include "worker/barrier/star/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace bfio::worker {

// Callbacks for OpenSSL.
struct TlsCallbacks {
  // A session has a single key, so its name carries no information.
  static constexpr absl::string_view kKeyName = "bfio epoch";

  static TlsSession& SessionOf(SSL* ssl) { return *static_cast<TlsSession*>(SSL_get_app_data(ssl)); }

  // The caller owns the result. Null when OpenSSL fails; the handshake then fails too.
  static SSL_SESSION* KeyOf(SSL* ssl) {
    constexpr unsigned char kChaCha20[] = {0x13, 0x03};
    const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kChaCha20);
    SSL_SESSION* key = SSL_SESSION_new();
    const Secret& secret = SessionOf(ssl).secret_;
    if (key != nullptr && cipher != nullptr &&
        SSL_SESSION_set1_master_key(key, secret.data(), secret.size()) == 1 &&
        SSL_SESSION_set_cipher(key, cipher) == 1 &&
        SSL_SESSION_set_protocol_version(key, TLS1_3_VERSION) == 1) {
      return key;
    }
    SSL_SESSION_free(key);
    return nullptr;
  }

  static int JoinerSession(SSL* ssl, const EVP_MD*, const unsigned char** name, size_t* size,
                           SSL_SESSION** key) {
    *key = KeyOf(ssl);
    *name = reinterpret_cast<const unsigned char*>(kKeyName.data());
    *size = kKeyName.size();
    return *key != nullptr ? 1 : 0;
  }

  static int AcceptorSession(SSL* ssl, const unsigned char* name, size_t size, SSL_SESSION** key) {
    const absl::string_view given(reinterpret_cast<const char*>(name), size);
    *key = given == kKeyName ? KeyOf(ssl) : nullptr;
    return given != kKeyName || *key != nullptr ? 1 : 0;
  }

  // OpenSSL's own socket BIO writes without MSG_NOSIGNAL: SIGPIPE from a closed connection would end the
  // process.
  static int Write(BIO* bio, const char* data, int size) {
    BIO_clear_retry_flags(bio);
    const auto sent = send(FdOf(bio), data, static_cast<size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && BIO_sock_non_fatal_error(errno) == 1) BIO_set_retry_write(bio);
    return static_cast<int>(sent);
  }
  static int Read(BIO* bio, char* data, int size) {
    BIO_clear_retry_flags(bio);
    const auto got = recv(FdOf(bio), data, static_cast<size_t>(size), MSG_DONTWAIT);
    if (got < 0 && BIO_sock_non_fatal_error(errno) == 1) BIO_set_retry_read(bio);
    return static_cast<int>(got);
  }
  static long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }
};

namespace {

// Never freed, like OpenSSL's own methods.
BIO_METHOD* SocketMethod() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "bfio barrier");
    if (made != nullptr) {
      BIO_meth_set_write(made, &TlsCallbacks::Write);
      BIO_meth_set_read(made, &TlsCallbacks::Read);
      BIO_meth_set_ctrl(made, &TlsCallbacks::Control);
    }
    return made;
  }();
  return method;
}

std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> MakeContext() {
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()), &SSL_CTX_free);
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context.get(), "TLS_CHACHA20_POLY1305_SHA256") != 1) {
    return {nullptr, &SSL_CTX_free};
  }
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_psk_use_session_callback(context.get(), &TlsCallbacks::JoinerSession);
  SSL_CTX_set_psk_find_session_callback(context.get(), &TlsCallbacks::AcceptorSession);
  return context;
}

std::string Reason() {
  const unsigned long error = ERR_peek_last_error();
  const char* words = error == 0 ? nullptr : ERR_reason_error_string(error);
  return words == nullptr ? "the peer disconnected" : words;
}

}  // namespace

void TlsSession::FreeSsl::operator()(ssl_st* ssl) const {
  SSL_free(ssl);
}

absl::StatusOr<std::unique_ptr<TlsSession>> TlsSession::Create(int fd, TlsEnd end, const Secret& secret) {
  const auto context = MakeContext();
  std::unique_ptr<TlsSession> session(new TlsSession(secret, end));
  if (context != nullptr) session->ssl_.reset(SSL_new(context.get()));
  BIO* const bio = SocketMethod() != nullptr ? BIO_new(SocketMethod()) : nullptr;
  if (session->ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return absl::InternalError(absl::StrCat("TLS for the barrier: ", Reason()));
  }
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(session->ssl_.get(), bio, bio);
  SSL_set_app_data(session->ssl_.get(), session.get());
  // Rejects an acceptor that presents a certificate instead of the key: no authority is trusted.
  if (end == TlsEnd::kJoiner) SSL_set_verify(session->ssl_.get(), SSL_VERIFY_PEER, nullptr);
  return session;
}

absl::StatusOr<short> TlsSession::Handshake() {
  ERR_clear_error();
  const int result = end_ == TlsEnd::kJoiner ? SSL_connect(ssl_.get()) : SSL_accept(ssl_.get());
  if (result == 1) {
    // A session without the key would have to use certificates, and no rank has one.
    if (SSL_session_reused(ssl_.get()) == 1) return short{0};
    return absl::UnavailableError("TLS: the peer did not use the epoch's secret");
  }
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ: return short{POLLIN};
    case SSL_ERROR_WANT_WRITE: return short{POLLOUT};
    default: return absl::UnavailableError(absl::StrCat("TLS: ", Reason()));
  }
}

std::optional<size_t> TlsSession::SizeOf(int result) const {
  if (result > 0) return static_cast<size_t>(result);
  const int error = SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return 0;
  return std::nullopt;
}

std::optional<size_t> TlsSession::ReadSome(absl::Span<uint8_t> into) {
  ERR_clear_error();
  return SizeOf(SSL_read(ssl_.get(), into.data(), static_cast<int>(std::min<size_t>(into.size(), INT_MAX))));
}

std::optional<size_t> TlsSession::SendSome(absl::Span<const uint8_t> bytes) {
  if (bytes.empty()) return 0;
  ERR_clear_error();
  return SizeOf(
      SSL_write(ssl_.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX))));
}

}  // namespace bfio::worker
