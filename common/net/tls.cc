#include "common/net/tls.h"

#include <fcntl.h>
#include <grpc/grpc_security_constants.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/auth/token_file.h"
#include "common/base/mutex.h"
#include "common/base/read_file.h"
#include "common/base/spdlog.h"
#include "common/base/status_macros.h"
#include "common/net/tsan_edge.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace bfio {
namespace {

constexpr int kWarnDaysBeforeExpiry = 14;

constexpr size_t kMaxPemBytes = 1 << 20;

using Bio = std::unique_ptr<BIO, decltype([](BIO* bio) { BIO_free(bio); })>;
using Certificate = std::unique_ptr<X509, decltype([](X509* x) { X509_free(x); })>;
using Key = std::unique_ptr<EVP_PKEY, decltype([](EVP_PKEY* x) { EVP_PKEY_free(x); })>;

// `flag`: empty: the files belong to several.
std::string Of(absl::string_view flag) {
  return flag.empty() ? "" : absl::StrCat("--", flag, ": ");
}
absl::Status Bad(absl::string_view flag, absl::string_view path, absl::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(Of(flag), path, " ", what));
}
Bio BioOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}
Certificate FirstCertificate(const std::string& text) {
  return Certificate(PEM_read_bio_X509(BioOf(text).get(), nullptr, nullptr, nullptr));
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

// What the files contain, each in the place of its path.
absl::StatusOr<TlsFiles> Read(const TlsFiles& files, absl::string_view flag) {
  TlsFiles texts;
  for (const auto member : {&TlsFiles::cert, &TlsFiles::key, &TlsFiles::ca}) {
    const std::string& path = files.*member;
    if (path.empty()) continue;
    absl::StatusOr<std::string> text = ReadFile(path, kMaxPemBytes);
    if (!text.ok()) return absl::NotFoundError(absl::StrCat(Of(flag), text.status().message()));
    if (text->size() > kMaxPemBytes) return Bad(flag, path, "is larger than 1 MiB");
    texts.*member = *std::move(text);
  }
  return texts;
}

// `texts` are what `files` contain.
absl::Status Check(const TlsFiles& files, const TlsFiles& texts, absl::string_view flag) {
  for (const auto member : {&TlsFiles::cert, &TlsFiles::ca}) {
    if (!(files.*member).empty() && FirstCertificate(texts.*member) == nullptr)
      return Bad(flag, files.*member, "contains no PEM certificate");
  }
  if (files.key.empty()) return absl::OkStatus();
  // Without this OpenSSL would ask for a key's password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  const Key key(PEM_read_bio_PrivateKey(BioOf(texts.key).get(), nullptr, no_password, nullptr));
  if (key == nullptr) return Bad(flag, files.key, "contains no PEM private key without a password");
  if (X509_check_private_key(FirstCertificate(texts.cert).get(), key.get()) != 1)
    return Bad(flag, files.key, absl::StrCat("is not the key of the certificate in ", files.cert));
  return absl::OkStatus();
}

// What followed paths lead to. Certificate and key have one path, so that they change together.
class Copies {
 public:
  explicit Copies(const TlsFiles& files) : files_(files) {
    if (!files.cert.empty()) paths_.cert = paths_.key = PathOf(pair_);
    if (!files.ca.empty()) paths_.ca = PathOf(ca_);
  }
  // Valid as long as the process.
  const TlsFiles& paths() const { return paths_; }

  void Refresh() {
    const absl::StatusOr<TlsFiles> texts = Read(files_, "");
    const absl::Status status = texts.ok() ? Check(files_, *texts, "") : texts.status();
    if (std::exchange(told_, status) != status && !status.ok())
      spdlog::error("{}; the previous certificate remains in use", std::string(status.message()));
    if (!status.ok() || *texts == texts_) return;
    Put(absl::StrCat(texts->key, "\n", texts->cert), pair_);
    Put(texts->ca, ca_);
    if (std::exchange(texts_, *texts).enabled())
      spdlog::info("reloaded the certificate {}", files_.cert.empty() ? files_.ca : files_.cert);
  }

 private:
  static int Empty() { return memfd_create("tls", MFD_CLOEXEC); }
  static std::string PathOf(int fd) { return absl::StrCat("/proc/self/fd/", fd); }
  // The path leads to the old text or to all of the new one.
  static void Put(const std::string& text, int to) {
    const int next = Empty();
    if (write(next, text.data(), text.size()) == static_cast<ssize_t>(text.size())) dup3(next, to, O_CLOEXEC);
    close(next);
  }

  const TlsFiles files_;
  const int pair_ = Empty(), ca_ = Empty();
  TlsFiles paths_, texts_;
  absl::Status told_;
};

// gRPC takes an empty path as absent.
std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> Watch(const TlsFiles& from) {
  const TlsFiles files = FollowTlsFiles(from);
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.cert, files.ca, static_cast<unsigned>(absl::ToInt64Seconds(kTlsReload)));
}

class TokenOfFile final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenOfFile(std::string path) : token_(std::move(path)) {}
  ~TokenOfFile() override { GrpcTakeOver(this); }
  bool IsBlocking() const override { return false; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace("authorization", absl::StrCat("Bearer ", token_.Get()));
    GrpcHandOver(this);
    return grpc::Status::OK;
  }

 private:
  ClientToken token_;
};

std::vector<std::string> Properties(const grpc::AuthContext& peer, const char* name) {
  std::vector<std::string> values;
  for (const grpc::string_ref& value : peer.FindPropertyValues(name))
    values.emplace_back(value.data(), value.size());
  return values;
}

}  // namespace

std::optional<absl::Time> CertificateExpiry(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxPemBytes);
  if (!text.ok()) return std::nullopt;
  const Certificate certificate = FirstCertificate(*text);
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
  BFIO_ASSIGN_OR_RETURN(const TlsFiles texts, Read(files, flag));
  BFIO_RETURN_IF_ERROR(Check(files, texts, flag));
  if (!files.cert.empty()) WarnOfExpiry(FirstCertificate(texts.cert).get(), files.cert);
  if (!files.ca.empty()) WarnOfExpiry(FirstCertificate(texts.ca).get(), files.ca);
  if (!files.key.empty()) WarnIfWorldReadable(files.key);
  return absl::OkStatus();
}

TlsFiles FollowTlsFiles(const TlsFiles& files) {
  if (!files.enabled()) return files;
  // They and their thread live as long as the process.
  struct All {
    Mutex mutex;
    std::vector<std::pair<TlsFiles, std::unique_ptr<Copies>>> copies ABSL_GUARDED_BY(mutex);
  };
  static All* const all_of_them = [] {
    auto* const made = new All;
    // What ends last was registered first: OpenSSL must not end while its thread reads files.
    OPENSSL_init_crypto(0, nullptr);
    std::atexit([] { all_of_them->mutex.Lock(); });
    std::thread([made] {
      for (;; absl::SleepFor(kTlsReload)) {
        MutexLock lock(&made->mutex);
        for (const auto& [from, copies] : made->copies) copies->Refresh();
      }
    }).detach();
    return made;
  }();
  All& all = *all_of_them;
  MutexLock lock(&all.mutex);
  for (const auto& [from, copies] : all.copies) {
    if (from == files) return copies->paths();
  }
  auto copies = std::make_unique<Copies>(files);
  copies->Refresh();
  return all.copies.emplace_back(files, std::move(copies)).second->paths();
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
