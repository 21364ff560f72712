#include "common/net/port.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <utility>

#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/net/channel.h"

namespace bfio {
namespace {

constexpr int kMaxReflectionThreads = 8;

class WithReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>());
  }
};

}  // namespace

FirstMessages::Limits MessageLimits(int max_message_bytes) {
  constexpr int kTogether = 64 << 20;
  return {.at_once = static_cast<size_t>(std::clamp(kTogether / std::max(1, max_message_bytes), 4, 256))};
}

absl::StatusOr<Port> OpenPort(const PortSpec& spec) {
  BFIO_ASSIGN_OR_RETURN(Address address, ParseAddress(spec.listen, /*port_may_be_0=*/true));
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<ConnectionListener> listener, ConnectionListener::Bind(address));
  for (Authenticator* authenticator : spec.authenticators) {
    authenticator->set_on_accepted(
        [raw = listener.get()](const std::string& peer, bool gateway) { raw->Authenticated(peer, gateway); });
  }
  for (FirstMessages* messages : spec.messages) {
    messages->set_received([raw = listener.get()](const std::string& peer) { return raw->Received(peer); });
    if (!spec.bounds_messages) continue;
    messages->set_arrived(
        [raw = listener.get()](const std::string& peer, int64_t bytes) { raw->Arrived(peer, bytes); });
  }
  grpc::ServerBuilder builder;
  ConfigureServer(builder, spec.max_streams);
  builder.SetMaxReceiveMessageSize(spec.max_message_bytes);
  // Reflection, the only synchronous service, occupies a thread per open stream.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetResourceQuota(
      grpc::ResourceQuota(spec.listen).Resize(spec.memory_bytes).SetMaxThreads(kMaxReflectionThreads));
  if (spec.reflection) builder.SetOption(std::make_unique<WithReflection>());
  listener->AddTo(builder, ServerCredentials(spec.tls));
  for (grpc::Service* service : spec.services) {
    if (service != nullptr) builder.RegisterService(service);
  }
  Port opened;
  opened.server = builder.BuildAndStart();
  if (opened.server == nullptr) return absl::InternalError("the gRPC server failed to start");
  opened.listener = std::move(listener);
  opened.listener->Serve();
  address.port = opened.listener->port();
  opened.address = address.ToString();
  return opened;
}

}  // namespace bfio
