// bfio.v1.Admin: what operators call, on the callback API.
//
// Purpose: authenticates, checks and converts; no state of its own. Threads: methods run on gRPC's threads
// and never block. What it is given outlives the server that the service is registered with.
#ifndef BFIO_ROUTER_ADMIN_ADMIN_SERVICE_H_
#define BFIO_ROUTER_ADMIN_ADMIN_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "bfio/v1/admin.grpc.pb.h"
#include "common/net/authenticator.h"
#include "router/admin/operator_handler.h"
#include "router/admin/step_broadcast.h"

namespace bfio::router {

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(OperatorHandler* handler, Authenticator* authenticator, StepBroadcast* steps)
      : handler_(handler), authenticator_(authenticator), steps_(steps) {}

  grpc::ServerUnaryReactor* GetClusterState(grpc::CallbackServerContext* context,
                                            const v1::GetClusterStateRequest* request,
                                            v1::ClusterState* response) override;
  grpc::ServerWriteReactor<v1::StepSummary>* WatchSteps(grpc::CallbackServerContext* context,
                                                        const v1::WatchStepsRequest* request) override;
  grpc::ServerUnaryReactor* DrainWorker(grpc::CallbackServerContext* context,
                                        const v1::DrainWorkerRequest* request,
                                        v1::DrainWorkerResponse* response) override;
  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* context,
                                      const v1::SetPolicyRequest* request,
                                      v1::SetPolicyResponse* response) override;

 private:
  OperatorHandler* const handler_;
  Authenticator* const authenticator_;
  StepBroadcast* const steps_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_ADMIN_SERVICE_H_
