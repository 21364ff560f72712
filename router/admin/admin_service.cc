#include "router/admin/admin_service.h"

#include <utility>

#include "common/net/finish_call.h"
#include "common/net/status.h"
#include "router/admin/policy_change.h"

namespace bfio::router {
namespace {

// A stream that ends before anything is written to it.
class RefusedSteps final : public grpc::ServerWriteReactor<v1::StepSummary> {
 public:
  explicit RefusedSteps(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

OperatorHandler::Done FinishWith(grpc::ServerUnaryReactor* reactor) {
  return [reactor](const absl::Status& status) { reactor->Finish(ToGrpcStatus(status)); };
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetClusterState(grpc::CallbackServerContext* context,
                                                        const v1::GetClusterStateRequest* request,
                                                        v1::ClusterState* response) {
  if (absl::Status status = authenticator_->Check(*context); !status.ok()) return FinishNow(context, status);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::Status asked = handler_->State([reactor, response](absl::StatusOr<RouterState> state) {
    if (state.ok()) *response = ToProto(*state);
    reactor->Finish(ToGrpcStatus(state.status()));
  });
  if (!asked.ok()) reactor->Finish(ToGrpcStatus(asked));
  return reactor;
}

grpc::ServerWriteReactor<v1::StepSummary>* AdminService::WatchSteps(grpc::CallbackServerContext* context,
                                                                    const v1::WatchStepsRequest* request) {
  if (absl::Status status = authenticator_->Check(*context); !status.ok()) return new RefusedSteps(status);
  return steps_->Subscribe(request->has_every() ? request->every() : 1);
}

grpc::ServerUnaryReactor* AdminService::DrainWorker(grpc::CallbackServerContext* context,
                                                    const v1::DrainWorkerRequest* request,
                                                    v1::DrainWorkerResponse* response) {
  if (absl::Status status = authenticator_->Check(*context); !status.ok()) return FinishNow(context, status);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::Status asked = handler_->DrainWorker(request->worker_id(), FinishWith(reactor));
  if (!asked.ok()) reactor->Finish(ToGrpcStatus(asked));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SetPolicy(grpc::CallbackServerContext* context,
                                                  const v1::SetPolicyRequest* request,
                                                  v1::SetPolicyResponse* response) {
  if (absl::Status status = authenticator_->Check(*context); !status.ok()) return FinishNow(context, status);
  absl::StatusOr<PolicyChange> change = ToPolicyChange(request->policy());
  if (!change.ok()) return FinishNow(context, change.status());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::Status asked = handler_->SetPolicy(*std::move(change), FinishWith(reactor));
  if (!asked.ok()) reactor->Finish(ToGrpcStatus(asked));
  return reactor;
}

}  // namespace bfio::router
