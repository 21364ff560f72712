#include "common/net/tls.h"

#include <grpc/grpc_security_constants.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/auth/token_file.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/net/tsan_edge.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace bfio {
namespace {

constexpr int kWarnDaysBeforeExpiry = 14;

using File = std::unique_ptr<std::FILE, decltype([](std::FILE* file) { std::fclose(file); })>;
using Certificate = std::unique_ptr<X509, decltype([](X509* x) { X509_free(x); })>;
using Key = std::unique_ptr<EVP_PKEY, decltype([](EVP_PKEY* x) { EVP_PKEY_free(x); })>;

absl::Status Bad(absl::string_view flag, absl::string_view path, absl::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", path, " ", what));
}

absl::StatusOr<File> OpenFile(absl::string_view flag, const std::string& path) {
  File file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("--", flag, ": cannot read ", path));
  return file;
}

void WarnOfExpiry(const X509* certificate, const std::string& path) {
  int days = 0, seconds = 0;
  if (ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(certificate)) != 1) return;
  if (days < 0 || seconds < 0) {
    spdlog::warn("the certificate in {} has expired", path);
  } else if (days < kWarnDaysBeforeExpiry) {
    spdlog::warn("the certificate in {} expires in {} days", path, days);
  }
}

// The first certificate of a PEM file.
absl::StatusOr<Certificate> ReadCertificate(absl::string_view flag, const std::string& path) {
  BFIO_ASSIGN_OR_RETURN(const File file, OpenFile(flag, path));
  Certificate certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return Bad(flag, path, "contains no PEM certificate");
  WarnOfExpiry(certificate.get(), path);
  return certificate;
}

absl::Status CheckPair(const TlsFiles& files, absl::string_view flag) {
  BFIO_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(flag, files.cert));
  BFIO_ASSIGN_OR_RETURN(const File file, OpenFile(flag, files.key));
  // Without this OpenSSL would ask for a key's password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  const Key key(PEM_read_PrivateKey(file.get(), nullptr, no_password, nullptr));
  if (key == nullptr) return Bad(flag, files.key, "contains no PEM private key without a password");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Bad(flag, files.key, absl::StrCat("is not the key of the certificate in ", files.cert));
  }
  WarnIfWorldReadable(files.key);
  return absl::OkStatus();
}

// gRPC takes an empty path as absent.
std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> Watch(const TlsFiles& files) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.cert, files.ca, static_cast<unsigned>(absl::ToInt64Seconds(kTlsReload)));
}

class TokenOfFile final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenOfFile(std::string path) : path_(std::move(path)) {}
  ~TokenOfFile() override { GrpcTakeOver(this); }
  bool IsBlocking() const override { return false; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace("authorization", absl::StrCat("Bearer ", Token()));
    GrpcHandOver(this);
    return grpc::Status::OK;
  }

 private:
  std::string Token() {
    MutexLock lock(&mutex_);
    if (MonotonicNow() < next_read_) return token_;
    next_read_ = MonotonicNow() + kTlsReload;
    absl::StatusOr<std::string> token = ReadTokenFile(path_);
    const std::string error(token.status().message());
    if (token.ok()) token_ = *std::move(token);
    if (std::exchange(error_, error) != error && !error.empty()) spdlog::warn("{}", error);
    return token_;
  }

  const std::string path_;
  Mutex mutex_;
  absl::Time next_read_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::string token_ ABSL_GUARDED_BY(mutex_), error_ ABSL_GUARDED_BY(mutex_);
};

std::vector<std::string> Properties(const grpc::AuthContext& peer, const char* name) {
  std::vector<std::string> values;
  for (const grpc::string_ref& value : peer.FindPropertyValues(name))
    values.emplace_back(value.data(), value.size());
  return values;
}

}  // namespace

std::optional<absl::Time> CertificateExpiry(const std::string& path) {
  const File file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return std::nullopt;
  const Certificate certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr));
  tm expiry = {};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &expiry) != 1) {
    ERR_clear_error();
    return std::nullopt;
  }
  return absl::FromTM(expiry, absl::UTCTimeZone());
}

absl::Status CheckTlsFiles(const TlsFiles& files, absl::string_view flag, TlsEnd end) {
  if (!files.enabled()) return absl::OkStatus();
  if (files.cert.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": cert=FILE and key=FILE must be given together"));
  }
  if (end == TlsEnd::kServer && files.cert.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ca=FILE needs cert=FILE and key=FILE"));
  }
  if (end == TlsEnd::kClient && files.ca.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, ": cert=FILE needs ca=FILE, which verifies the server's certificate"));
  }
  if (!files.cert.empty()) {
    BFIO_RETURN_IF_ERROR(CheckPair(files, flag));
  }
  return files.ca.empty() ? absl::OkStatus() : ReadCertificate(flag, files.ca).status();
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(const TlsFiles& files) {
  if (!files.enabled()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(Watch(files));
  options.watch_identity_key_cert_pairs();
  if (!files.ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const TlsFiles& files) {
  if (!files.enabled()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files));
  options.watch_root_certs();
  if (!files.cert.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const TlsFiles& files,
                                                             const std::string& token_file) {
  if (token_file.empty()) return ChannelCredentials(files);
  return grpc::CompositeChannelCredentials(
      ChannelCredentials(files),
      grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenOfFile>(token_file)));
}

std::vector<std::string> PeerNames(const grpc::AuthContext& peer) {
  std::vector<std::string> names = Properties(peer, "peer_dns");
  if (names.empty()) names = Properties(peer, GRPC_X509_CN_PROPERTY_NAME);
  return names;
}

}  // namespace bfio
