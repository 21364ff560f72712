// The router as one object: decision thread, services, listening ports.
//
// Purpose: what main and in-process tests start and stop. Threads: Start, Shutdown and destruction from one
// thread.
#ifndef BFIO_ROUTER_APP_ROUTER_SERVER_H_
#define BFIO_ROUTER_APP_ROUTER_SERVER_H_

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
#include "router/admin/admin_service.h"
#include "router/admin/live/history.h"
#include "router/admin/step_broadcast.h"
#include "router/app/decision_thread.h"
#include "router/app/options.h"
#include "router/app/ports.h"
#include "router/frontend/inference_service.h"
#include "router/frontend/vllm/vllm_service.h"
#include "router/worker_link/worker_link_service.h"
#include "router/worker_link/worker_port_service.h"

namespace bfio::router {

class RouterServer {
 public:
  // What Start would say of the settings, as far as it can be said without ports and logs.
  static absl::Status Check(const RouterOptions& options);
  // INVALID_ARGUMENT for a wrong setting, UNAVAILABLE when a port cannot be had.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(RouterOptions options);
  ~RouterServer() { Shutdown(); }

  // Drains as DecisionThread::Stop says, then closes the ports. Idempotent.
  void Shutdown();

  // "HOST:PORT" as bound, where port 0 was asked for too.
  const std::string& address() const { return client_.address; }
  const std::string& worker_address() { return worker_port().address; }
  const std::string& admin_address() const { return admin_port_.address; }
  // Empty when there is no live page.
  std::string http_address() const { return web_ == nullptr ? "" : web_->address(); }

 private:
  RouterServer() = default;
  absl::Status OpenPorts(const RouterOptions& options);
  void MakeHealth(const RouterOptions& options);
  void MakeServices(const RouterOptions& options, ClientSecrets secrets,
                    std::shared_ptr<const ModelFiles> model);
  // The part of the state that the decision thread does not have. Any thread.
  void AddPortsAndProcess(v1::ClusterState& state);
  // The port of the workers.
  Port& worker_port() { return own_worker_port_.server == nullptr ? client_ : own_worker_port_; }

  StepBroadcast steps_;
  std::unique_ptr<DecisionThread> thread_;
  std::unique_ptr<Authenticator> client_authenticator_, worker_authenticator_, admin_authenticator_;
  // Of all client APIs together.
  std::unique_ptr<FirstMessages> client_messages_;
  // Of the client APIs; null where it is not asked for.
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<vllm::VllmService> vllm_;
  std::unique_ptr<WorkerLinkService> link_;
  // Null where the program has none.
  std::unique_ptr<WorkerPortService> beside_link_;
  std::unique_ptr<AdminService> admin_;
  // Of each port; the workers' is null where they use the clients'.
  std::unique_ptr<HealthService> client_health_, worker_health_, admin_health_;
  Port client_, own_worker_port_, admin_port_;
  const std::shared_ptr<LiveHistory> history_ = std::make_shared<LiveHistory>();
  bool web_wanted_ = false;
  std::unique_ptr<HttpServer> web_;

  // Of a port that is open, for operators.
  struct OpenedPort {
    const char* name;
    const ConnectionListener* listener;
    std::vector<const Authenticator*> authenticators;
    // File of the certificate; empty: none.
    std::string certificate;
  };
  Mutex ports_mutex_;
  std::vector<OpenedPort> opened_ ABSL_GUARDED_BY(ports_mutex_);
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_APP_ROUTER_SERVER_H_
