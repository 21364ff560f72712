#include "router/service/services.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/status.h"

namespace bfio::router {
namespace {

grpc::Status Stopped() {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router is shutting down");
}

// Runs `work` on the decision thread and finishes the call with its status. Request and response live until
// then.
template <typename Work>
grpc::ServerUnaryReactor* OnLoop(DecisionLoop* loop, grpc::CallbackServerContext* context, Work work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const bool posted = loop->Post([reactor, work = std::move(work)](DecisionLoop& on_loop) mutable {
    reactor->Finish(ToGrpcStatus(work(on_loop)));
  });
  if (!posted) reactor->Finish(Stopped());
  return reactor;
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const core::RequestId id = loop_->NextId();
  v1::GenerateRequest copy = *request;
  if (copy.request_id().empty()) copy.set_request_id(absl::StrCat("bfio-", id));
  const std::shared_ptr<ClientStream> stream =
      ClientStream::Create(copy.request_id(), [loop = loop_, id] { loop->PostCancel(id); });
  absl::Status status = CheckGenerate(copy, limits_);
  if (status.ok()) status = loop_->PostArrival(id, std::move(copy), stream);
  if (!status.ok() && stream->End(ToGrpcStatus(status), std::nullopt)) stream->Flush();
  return stream.get();  // kept alive by itself until OnDone
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const v1::AbortRequest* request,
                                                  v1::AbortResponse* response) {
  return OnLoop(loop_, context, [request, response](DecisionLoop& loop) {
    response->set_found(loop.Abort(request->request_id()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::GetLoads(grpc::CallbackServerContext* context,
                                                     const v1::GetLoadsRequest* request,
                                                     v1::GetLoadsResponse* response) {
  return OnLoop(loop_, context,
                [request, response](DecisionLoop& loop) { return loop.FillLoads(*request, *response); });
}

grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* WorkerLinkService::Attach(
    grpc::CallbackServerContext* context) {
  WorkerSession::Callbacks callbacks;
  callbacks.on_message = [loop = loop_](std::shared_ptr<WorkerSession> session, v1::WorkerMessage message) {
    loop->PostWorkerMessage(std::move(session), std::move(message));
  };
  callbacks.on_gone = [loop = loop_](std::shared_ptr<WorkerSession> session) {
    loop->PostWorkerGone(std::move(session));
  };
  return WorkerSession::Create(context->peer(), std::move(callbacks)).get();
}

grpc::ServerUnaryReactor* AdminService::GetClusterState(grpc::CallbackServerContext* context,
                                                        const v1::GetClusterStateRequest* request,
                                                        v1::ClusterState* response) {
  return OnLoop(loop_, context, [response](DecisionLoop& loop) {
    loop.FillState(*response);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::StepSummary>* AdminService::WatchSteps(grpc::CallbackServerContext* context,
                                                                    const v1::WatchStepsRequest* request) {
  return steps_->Subscribe(request->has_every() ? request->every() : 1);
}

grpc::ServerUnaryReactor* AdminService::DrainWorker(grpc::CallbackServerContext* context,
                                                    const v1::DrainWorkerRequest* request,
                                                    v1::DrainWorkerResponse* response) {
  return OnLoop(loop_, context,
                [request](DecisionLoop& loop) { return loop.DrainWorker(request->worker_id()); });
}

grpc::ServerUnaryReactor* AdminService::SetPolicy(grpc::CallbackServerContext* context,
                                                  const v1::SetPolicyRequest* request,
                                                  v1::SetPolicyResponse* response) {
  return OnLoop(loop_, context, [request](DecisionLoop& loop) { return loop.SetPolicy(request->policy()); });
}

}  // namespace bfio::router
