#include "router/app/ports.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/net/channel.h"
#include "common/net/exposure.h"

namespace bfio::router {
namespace {

// Streams that a connection may have at once.
constexpr int kMaxStreams = 8192;

// gRPC's memory for callers before authentication.
void ConfigurePort(grpc::ServerBuilder& builder) {
  ConfigureServer(builder, kMaxStreams);
  // The windows stay what HTTP/2 begins with, 64 KiB: probing for bandwidth lets a caller widen them.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
}

class WithReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>());
  }
};

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
        "--bind_worker_id needs --worker_tls=ca=FILE: without it no worker shows who it is");
  }
  if (!options.worker_listen.empty()) return absl::OkStatus();
  if (!options.client_tls.enabled() && options.client_tokens.empty() && !options.worker_tls.enabled()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "clients and workers are not trusted alike: with --client_tls, --client_tokens or --worker_tls workers "
      "need a port of their own (--worker_listen)");
}

}  // namespace

absl::Status CheckPorts(const RouterOptions& options) {
  if (absl::Status status = CheckWorkerPort(options); !status.ok()) return status;
  for (const auto& [flags, tls] :
       {std::pair<absl::string_view, const TlsFiles&>{"client_tls", options.client_tls},
        {"worker_tls", options.worker_tls},
        {"admin_tls", options.admin_tls}}) {
    if (absl::Status status = CheckTlsFiles(tls, flags, TlsEnd::kServer); !status.ok()) return status;
  }
  const PortSetup client = {"listen", "client_tls", "--client_tls=ca=FILE or --client_tokens",
                            options.client_tls.enabled(),
                            !options.client_tls.ca.empty() || !options.client_tokens.empty()};
  const PortSetup worker = {"worker_listen", "worker_tls", "--worker_tls=ca=FILE",
                            options.worker_tls.enabled(), !options.worker_tls.ca.empty()};
  const PortSetup admin = {"admin_listen", "admin_tls", "--admin_tls=ca=FILE or --admin_tokens",
                           options.admin_tls.enabled(),
                           !options.admin_tls.ca.empty() || !options.admin_tokens.empty()};
  if (absl::Status status = CheckPort(options.listen, client, options.insecure); !status.ok()) return status;
  if (!options.worker_listen.empty()) {
    if (absl::Status status = CheckPort(options.worker_listen, worker, options.insecure); !status.ok()) {
      return status;
    }
  }
  if (!options.http_listen.empty()) {
    PortSetup http = admin;
    http.listen_flag = "http_listen";
    if (absl::Status status = CheckPort(options.http_listen, http, options.insecure); !status.ok())
      return status;
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
  // A token id takes up to 5 bytes, and a resume brings the tokens that came as well; the other fields are
  // bounded by much less than the rest.
  constexpr int64_t kBytesPerToken = 5, kOtherFields = 64 << 10, kMost = 1 << 30;
  const int64_t tokens = int64_t{limits.max_prompt_tokens} + limits.max_new_tokens;
  return static_cast<int>(std::min(kBytesPerToken * tokens + kOtherFields, kMost));
}

FirstMessages::Limits MessageLimits(int max_message_bytes) {
  constexpr int kTogether = 64 << 20;
  return {.at_once = static_cast<size_t>(std::clamp(kTogether / std::max(1, max_message_bytes), 4, 256))};
}

absl::StatusOr<Port> OpenPort(const PortSpec& spec) {
  absl::StatusOr<Address> address = ParseAddress(spec.listen, /*port_may_be_0=*/true);
  if (!address.ok()) return address.status();
  absl::StatusOr<std::unique_ptr<ConnectionListener>> listener = ConnectionListener::Bind(*address);
  if (!listener.ok()) return listener.status();
  for (Authenticator* authenticator : spec.authenticators) {
    authenticator->set_on_accepted(
        [raw = listener->get()](const std::string& peer) { raw->Authenticated(peer); });
  }
  grpc::ServerBuilder builder;
  ConfigurePort(builder);
  builder.SetMaxReceiveMessageSize(spec.max_message_bytes);
  builder.SetResourceQuota(grpc::ResourceQuota(spec.listen).Resize(spec.memory_bytes));
  if (spec.reflection) builder.SetOption(std::make_unique<WithReflection>());
  (*listener)->AddTo(builder, ServerCredentials(spec.tls));
  for (grpc::Service* service : spec.services) {
    if (service != nullptr) builder.RegisterService(service);
  }
  Port opened;
  opened.server = builder.BuildAndStart();
  if (opened.server == nullptr) return absl::InternalError("the gRPC server does not start");
  opened.listener = *std::move(listener);
  opened.listener->Serve();
  address->port = opened.listener->port();
  opened.address = address->ToString();
  return opened;
}

}  // namespace bfio::router
