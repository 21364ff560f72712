// The three gRPC services, on the callback API: thin, no state of their own; everything is posted to the
// decision loop.
//
// Threads: methods run on gRPC's threads and never block. Loop and gates must outlive the server they are
// registered with. Every method of Inference and Admin asks the gate first.
#ifndef BFIO_ROUTER_ADMIN_SERVICES_H_
#define BFIO_ROUTER_ADMIN_SERVICES_H_

#include <grpcpp/grpcpp.h>

#include "bfio/v1/admin.grpc.pb.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "bfio/v1/worker.grpc.pb.h"
#include "router/admin/step_broadcast.h"
#include "router/app/decision_loop.h"
#include "router/frontend/gate.h"

namespace bfio::router {

class InferenceService final : public v1::Inference::CallbackService {
 public:
  InferenceService(DecisionLoop* loop, Gate* gate, const RequestLimits& limits)
      : loop_(loop), gate_(gate), limits_(limits) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                           const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetLoads(grpc::CallbackServerContext* context, const v1::GetLoadsRequest* request,
                                     v1::GetLoadsResponse* response) override;

 private:
  DecisionLoop* const loop_;
  Gate* const gate_;
  const RequestLimits limits_;
};

class WorkerLinkService final : public v1::WorkerLink::CallbackService {
 public:
  // With `bind_worker_id` a worker may only say the worker_id that its certificate names.
  WorkerLinkService(DecisionLoop* loop, bool bind_worker_id) : loop_(loop), bind_worker_id_(bind_worker_id) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* Attach(
      grpc::CallbackServerContext* context) override;

 private:
  DecisionLoop* const loop_;
  const bool bind_worker_id_;
  RefusalLog refusals_;
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(DecisionLoop* loop, Gate* gate, StepBroadcast* steps)
      : loop_(loop), gate_(gate), steps_(steps) {}

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
  DecisionLoop* const loop_;
  Gate* const gate_;
  StepBroadcast* const steps_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_SERVICES_H_
