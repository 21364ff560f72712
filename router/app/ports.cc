#include "router/app/ports.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/net/exposure.h"

namespace bfio::router {
namespace {

absl::Status CheckPort(const std::string& listen, const PortSetup& setup, bool insecure) {
  const absl::StatusOr<Address> address = ParseAddress(listen, /*port_may_be_0=*/true);
  if (!address.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", setup.listen_flag, ": ", address.status().message()));
  }
  return insecure ? absl::OkStatus() : CheckExposure(*address, setup);
}

absl::Status CheckWorkerPort(const RouterOptions& options) {
  if (options.bind_worker_id && options.worker_tls.ca.empty()) {
    return absl::InvalidArgumentError(
        "--bind_worker_id needs --worker_tls with ca=FILE: without it workers present no certificate");
  }
  if (!options.worker_listen.empty()) return absl::OkStatus();
  if (!options.client_tls.enabled() && options.client_tokens.empty() && !options.worker_tls.enabled()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--client_tls, --client_tokens and --worker_tls need --worker_listen: workers must have a port of "
      "their own");
}

}  // namespace

absl::Status CheckPorts(const RouterOptions& options) {
  BFIO_RETURN_IF_ERROR(CheckWorkerPort(options));
  for (const auto& [flags, tls] :
       {std::pair<absl::string_view, const TlsFiles&>{"client_tls", options.client_tls},
        {"worker_tls", options.worker_tls},
        {"admin_tls", options.admin_tls}}) {
    BFIO_RETURN_IF_ERROR(CheckTlsFiles(tls, flags, TlsEnd::kServer));
  }
  const PortSetup client = {"listen", "client_tls", "--client_tls=ca=FILE or --client_tokens",
                            options.client_tls.enabled(),
                            !options.client_tls.ca.empty() || !options.client_tokens.empty()};
  const PortSetup worker = {"worker_listen", "worker_tls", "--worker_tls=ca=FILE",
                            options.worker_tls.enabled(), !options.worker_tls.ca.empty()};
  const PortSetup admin = {"admin_listen", "admin_tls", "--admin_tls=ca=FILE or --admin_tokens",
                           options.admin_tls.enabled(),
                           !options.admin_tls.ca.empty() || !options.admin_tokens.empty()};
  BFIO_RETURN_IF_ERROR(CheckPort(options.listen, client, options.insecure));
  if (!options.picker_listen.empty()) {
    PortSetup picker = client;
    picker.listen_flag = "picker_listen";
    BFIO_RETURN_IF_ERROR(CheckPort(options.picker_listen, picker, options.insecure));
  }
  if (!options.worker_listen.empty()) {
    BFIO_RETURN_IF_ERROR(CheckPort(options.worker_listen, worker, options.insecure));
  }
  if (!options.http_listen.empty()) {
    PortSetup http = admin;
    http.listen_flag = "http_listen";
    BFIO_RETURN_IF_ERROR(CheckPort(options.http_listen, http, options.insecure));
  }
  return CheckPort(options.admin_listen, admin, options.insecure);
}

bool HttpOperates(const RouterOptions& options) {
  const absl::StatusOr<Address> http = ParseAddress(options.http_listen, /*port_may_be_0=*/true);
  const absl::StatusOr<Address> admin = ParseAddress(options.admin_listen, /*port_may_be_0=*/true);
  return http.ok() && admin.ok() && AnswersAt(*admin, *http);
}

absl::StatusOr<std::unique_ptr<Authenticator>> MakeAuthenticator(std::string api, const std::string& tokens,
                                                                 absl::string_view flag) {
  if (tokens.empty()) return std::make_unique<Authenticator>(std::move(api), nullptr);
  auto file = TokenFile::Open(tokens);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat("--", flag, ": ", file.status().message()));
  }
  return std::make_unique<Authenticator>(std::move(api), *std::move(file));
}

int MaxClientMessageBytes(const RequestLimits& limits) {
  // A token id takes up to 5 bytes, and a resume also sends the tokens that it has received. The bound of the
  // other fields is generous.
  constexpr int64_t kBytesPerToken = 5, kOtherFields = 64 << 10, kMost = 1 << 30;
  const int64_t tokens = int64_t{limits.max_prompt_tokens} + limits.max_new_tokens;
  return static_cast<int>(std::min(kBytesPerToken * tokens + kOtherFields, kMost));
}

}  // namespace bfio::router
