// The router as one object: decision loop, services, listening ports.
//
// Purpose: what main and in-process tests start and stop. Threads: Start, Shutdown and destruction from one
// thread.
#ifndef BFIO_ROUTER_SERVICE_ROUTER_SERVER_H_
#define BFIO_ROUTER_SERVICE_ROUTER_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "router/service/decision_loop.h"
#include "router/service/options.h"
#include "router/service/services.h"
#include "router/service/step_broadcast.h"

namespace bfio::router {

class RouterServer {
 public:
  // INVALID_ARGUMENT for a wrong setting, UNAVAILABLE when a port cannot be had.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(RouterOptions options);
  ~RouterServer() { Shutdown(); }

  // Drains as DecisionLoop::Stop says, then closes the ports. Idempotent.
  void Shutdown();

  // "HOST:PORT" as bound, where port 0 was asked for too.
  const std::string& address() const { return address_; }
  const std::string& admin_address() const { return admin_address_; }

 private:
  RouterServer() = default;
  void SetInferenceServing(bool serving);

  StepBroadcast steps_;
  std::unique_ptr<DecisionLoop> loop_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<WorkerLinkService> link_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::Server> admin_server_;
  std::string address_, admin_address_;

  Mutex health_mutex_;
  bool serving_ ABSL_GUARDED_BY(health_mutex_) = false;
  bool health_ready_ ABSL_GUARDED_BY(health_mutex_) = false;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_SERVICE_ROUTER_SERVER_H_
