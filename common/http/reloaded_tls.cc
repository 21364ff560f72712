#include "common/http/reloaded_tls.h"

#include <openssl/err.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/net/tls.h"
#include "common/telemetry/line_limiter.h"

namespace bfio {
namespace {

std::string OpenSslError() {
  char text[256] = "unknown error";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

// Called by OpenSSL at the end of a handshake attempt, also when it only waits for the peer.
void RecordRefusal(const SSL*, int where, int result) {
  if (where != SSL_CB_ACCEPT_EXIT || result > 0) return;
  const unsigned long error = ERR_peek_last_error();
  // A peer that closes the connection, as port probes do, is not a refusal.
  if (error == 0 || ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return;
  const char* reason = ERR_reason_error_string(error);
  // Never destroyed: connections may end late.
  static RefusalLog& refusals = *new RefusalLog;
  refusals.Add(absl::StrCat("HTTP port: TLS handshake: ", reason != nullptr ? reason : "unknown error"), "");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReloadedTls>> ReloadedTls::Load(const TlsFiles& files, TlsEnd end) {
  std::unique_ptr<ReloadedTls> result(new ReloadedTls(FollowTlsFiles(files), end));
  std::string stamp = result->Stamp();
  BFIO_ASSIGN_OR_RETURN(Context context, result->Read());
  MutexLock lock(&result->mutex_);
  result->context_ = std::move(context);
  result->stamp_ = std::move(stamp);
  return result;
}

void ReloadedTls::SetRules(SSL_CTX& context) const {
  SSL_CTX_set_min_proto_version(&context, TLS1_2_VERSION);
  SSL_CTX_set_options(&context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  if (end_ == TlsEnd::kClient) return SSL_CTX_set_verify(&context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_info_callback(&context, RecordRefusal);
  if (files_.ca.empty()) return;
  SSL_CTX_set_verify(&context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // A resumed session presents no certificate, so one from a replaced CA would still be accepted.
  SSL_CTX_set_session_cache_mode(&context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(&context, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(&context, 0);
}

absl::StatusOr<ReloadedTls::Context> ReloadedTls::Read() const {
  const bool client = end_ == TlsEnd::kClient;
  const Context context(SSL_CTX_new(client ? TLS_client_method() : TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return absl::InternalError(OpenSslError());
  SetRules(*context);
  // A password-protected key is rejected without a prompt.
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return -1; });
  if ((!client || !files_.cert.empty()) &&
      (SSL_CTX_use_certificate_chain_file(context.get(), files_.cert.c_str()) != 1 ||
       SSL_CTX_use_PrivateKey_file(context.get(), files_.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
       SSL_CTX_check_private_key(context.get()) != 1)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot use certificate and key: ", files_.cert, ", ",
                                                   files_.key, ": ", OpenSslError()));
  }
  if (files_.ca.empty()) return context;
  // The CAs' names are sent, so that browsers can choose a certificate.
  STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(files_.ca.c_str());
  if (names == nullptr || SSL_CTX_load_verify_file(context.get(), files_.ca.c_str()) != 1) {
    sk_X509_NAME_pop_free(names, X509_NAME_free);
    return absl::InvalidArgumentError(
        absl::StrCat("cannot use CA certificates: ", files_.ca, ": ", OpenSslError()));
  }
  SSL_CTX_set_client_CA_list(context.get(), names);
  return context;
}

std::string ReloadedTls::Stamp() const {
  std::string stamp;
  for (const std::string& path : {files_.cert, files_.ca}) {
    struct stat file = {};
    if (stat(path.c_str(), &file) != 0) continue;
    absl::StrAppend(&stamp, file.st_dev, ":", file.st_ino, ":", file.st_size, ":", file.st_ctim.tv_sec, ".",
                    file.st_ctim.tv_nsec, " ");
  }
  return stamp;
}

ReloadedTls::Context ReloadedTls::Current() {
  MutexLock lock(&mutex_);
  std::string stamp = Stamp();
  if (stamp == stamp_) return context_;
  if (absl::StatusOr<Context> context = Read(); context.ok()) {
    context_ = *std::move(context);
    stamp_ = std::move(stamp);
  } else if (stamp != told_) {
    told_ = std::move(stamp);
    spdlog::error("{}; the previous certificate remains in use", std::string(context.status().message()));
  }
  return context_;
}

}  // namespace bfio
