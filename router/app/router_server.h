// The router as one object: decision thread, services, listening ports. Main and in-process tests start and
// stop it. Threads: Start, Shutdown and destruction from one thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/http/http_server.h"
#include "common/net/authenticator.h"
#include "common/net/first_messages.h"
#include "common/net/health_service.h"
#include "common/net/port.h"
#include "router/admin/admin_service.h"
#include "router/admin/live/history.h"
#include "router/admin/step_broadcast.h"
#include "router/app/decision_thread.h"
#include "router/app/options.h"
#include "router/engine_link/engine_link.h"
#include "router/frontend/endpoint_picker/picker_service.h"
#include "router/frontend/gateway/gateway_service.h"
#include "router/frontend/inference_service.h"
#include "router/requests/text_ratio.h"
#include "router/worker_link/worker_link_service.h"
#include "router/worker_link/worker_port_service.h"

namespace bfio::router {

// The router's listening ports: how each one is protected, and checks that this is enough. Three APIs for
// three kinds of callers (clients, workers, operators), with separate credentials. Threads: one.

// INVALID_ARGUMENT or NOT_FOUND for malformed addresses; for unusable files; for a port that other machines
// can reach without encryption or authentication, unless options.insecure is set; and for workers that would
// share the clients' protected port.
absl::Status CheckPorts(const RouterOptions& options);

// True when operators may act at the HTTP port as at the admin port: only where the admin port listens at the
// same address. An HTTP port in a separate monitoring network is read-only.
bool HttpOperates(const RouterOptions& options);

// The authenticator of an API; without a tokens file it admits every caller. `flag` is for messages.
absl::StatusOr<std::unique_ptr<Authenticator>> MakeAuthenticator(std::string api, const std::string& tokens,
                                                                 absl::string_view flag);

// Step reports, and what a worker announces after a restart: held requests with their undelivered tokens.
inline constexpr int kMaxWorkerMessageBytes = 16 << 20;
inline constexpr int kMaxAdminMessageBytes = 64 << 10;

// Bound of a client's message, by its prompt and tokens.
int MaxClientMessageBytes(const RequestLimits& limits);

class RouterServer {
 public:
  // The errors of Start that can be found without opening ports and logs.
  static absl::Status Check(const RouterOptions& options);
  // INVALID_ARGUMENT for a wrong setting, UNAVAILABLE when a port cannot be bound.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(RouterOptions options);
  ~RouterServer() { Shutdown(); }

  // Drains as described at DecisionThread::Stop, then closes the ports. Idempotent.
  void Shutdown();

  // "HOST:PORT" as bound, also where port 0 was requested.
  const std::string& address() const { return client_.address; }
  const std::string& worker_address() { return worker_port().address; }
  const std::string& admin_address() const { return admin_port_.address; }
  // Empty without --picker_listen.
  const std::string& picker_address() const { return picker_port_.address; }
  // Empty without a live page.
  std::string http_address() const { return web_ == nullptr ? "" : web_->address(); }

 private:
  RouterServer() = default;
  absl::Status OpenPorts(const RouterOptions& options);
  void MakeHealth(const RouterOptions& options);
  void MakeServices(const RouterOptions& options, ClientSecrets secrets);
  // Adds the part of the state that the decision thread does not have. Any thread.
  void AddPortsAndProcess(v1::ClusterState& state);
  // The port of the workers.
  Port& worker_port() { return own_worker_port_.server == nullptr ? client_ : own_worker_port_; }

  StepBroadcast steps_;
  std::unique_ptr<DecisionThread> thread_;
  // Outlives the services.
  std::shared_ptr<const ModelFiles> model_;
  // --served_model_name; empty: the model's files name it.
  std::string served_model_name_;
  std::unique_ptr<Authenticator> client_authenticator_, picker_authenticator_, worker_authenticator_,
      admin_authenticator_;
  // Shared by all client APIs.
  std::unique_ptr<FirstMessages> client_messages_;
  // Client APIs; null where not enabled.
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<gateway::GatewayService> gateway_;
  std::unique_ptr<picker::PickerService> picker_;
  // Between the engines' edge and the picker's.
  const std::shared_ptr<TextRatio> text_ratio_ = std::make_shared<TextRatio>();
  const std::shared_ptr<Renderers> renderers_ = std::make_shared<Renderers>();
  // Null without --engines.
  std::unique_ptr<EngineLink> engines_;
  // Services of the workers' port.
  std::vector<std::unique_ptr<WorkerPortService>> worker_services_;
  std::unique_ptr<AdminService> admin_;
  // Health services by port; the workers' is null where they use the clients' port.
  std::unique_ptr<HealthService> client_health_, picker_health_, worker_health_, admin_health_;
  Port client_, picker_port_, own_worker_port_, admin_port_;
  const std::shared_ptr<LiveHistory> history_ = std::make_shared<LiveHistory>();
  bool web_wanted_ = false;
  absl::Duration drain_timeout_;
  std::unique_ptr<HttpServer> web_;

  // An open port, for the state that operators see.
  struct OpenedPort {
    const char* name;
    const ConnectionListener* listener;
    std::vector<const Authenticator*> authenticators;
    // File of the certificate; empty: no TLS.
    std::string certificate;
  };
  Mutex ports_mutex_;
  std::vector<OpenedPort> opened_ ABSL_GUARDED_BY(ports_mutex_);
};

}  // namespace bfio::router
