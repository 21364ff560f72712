#include "router/admin/services.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/status.h"
#include "common/net/tls.h"
#include "common/telemetry/trace_context.h"
#include "router/worker_link/worker_names.h"

namespace bfio::router {
namespace {

constexpr auto kClient = DecisionLoop::Caller::kClient, kOperator = DecisionLoop::Caller::kOperator;

grpc::ServerUnaryReactor* EndNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// A stream that ends before anything is written to it.
class RefusedSteps final : public grpc::ServerWriteReactor<v1::StepSummary> {
 public:
  explicit RefusedSteps(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

// Runs `work` on the decision thread and finishes the call with its status, if the caller may `enter`.
// Request and response live until then.
template <typename Work>
grpc::ServerUnaryReactor* OnLoop(DecisionLoop* loop, DecisionLoop::Caller caller, const absl::Status& enter,
                                 grpc::CallbackServerContext* context, Work work) {
  if (!enter.ok()) return EndNow(context, enter);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status posted =
      loop->PostCall(caller, [reactor, work = std::move(work)](DecisionLoop& on_loop) mutable {
        reactor->Finish(ToGrpcStatus(work(on_loop)));
      });
  if (!posted.ok()) reactor->Finish(ToGrpcStatus(posted));
  return reactor;
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const core::RequestId id = loop_->NextId();
  v1::GenerateRequest copy = *request;
  if (copy.request_id().empty()) copy.set_request_id(absl::StrCat("bfio-", id));
  const std::shared_ptr<ClientStream> stream =
      ClientStream::Create(context, id, copy.request_id(), loop_->stream_limits(),
                           [loop = loop_, id](bool timed_out) { loop->PostCancel(id, timed_out); });
  if (const auto trace = context->client_metadata().find("traceparent");
      trace != context->client_metadata().end()) {
    const absl::string_view value(trace->second.data(), trace->second.size());
    if (!TraceIdOf(value).empty()) stream->set_traceparent(std::string(value));
  }
  absl::Status status = gate_->EnterFor(*context, *copy.mutable_tenant());
  // Fields that this version does not know: nobody counts them, and they would be kept with the request.
  copy.DiscardUnknownFields();
  if (status.ok()) status = CheckGenerate(copy, limits_);
  if (status.ok() && IsBareResume(copy)) copy = BareResume(std::move(copy));
  if (status.ok()) status = loop_->PostArrival(id, std::move(copy), stream);
  if (!status.ok() && stream->End(ToGrpcStatus(status), std::nullopt)) stream->Flush();
  return stream.get();  // kept alive by itself until OnDone
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const v1::AbortRequest* request,
                                                  v1::AbortResponse* response) {
  const absl::StatusOr<std::optional<std::string>> caller = gate_->Caller(*context);
  return OnLoop(loop_, kClient, caller.status(), context, [request, response, caller](DecisionLoop& loop) {
    response->set_found(loop.Abort(*request, *caller));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* InferenceService::GetLoads(grpc::CallbackServerContext* context,
                                                     const v1::GetLoadsRequest* request,
                                                     v1::GetLoadsResponse* response) {
  return OnLoop(loop_, kClient, gate_->Enter(*context), context,
                [request, response](DecisionLoop& loop) { return loop.FillLoads(*request, *response); });
}

grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* WorkerLinkService::Attach(
    grpc::CallbackServerContext* context) {
  WorkerSession::Callbacks callbacks;
  std::optional<std::vector<std::string>> names;
  if (bind_worker_id_) names = PeerNames(*context->auth_context());
  callbacks.on_message = [this, loop = loop_, names = std::move(names)](
                             std::shared_ptr<WorkerSession> session, v1::WorkerMessage message) {
    if (names.has_value() && message.has_hello() && !NamesWorker(*names, message.hello().worker_id())) {
      refusals_.Add("worker link: the certificate is not this worker_id's", session->peer());
      session->Close(
          grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "the certificate does not name this worker_id"));
      session->Consumed();
      return;
    }
    loop->PostWorkerMessage(std::move(session), std::move(message));
  };
  callbacks.on_gone = [loop = loop_](std::shared_ptr<WorkerSession> session) {
    loop->PostWorkerGone(std::move(session));
  };
  return WorkerSession::Create(context->peer(), std::move(callbacks), context).get();
}

grpc::ServerUnaryReactor* AdminService::GetClusterState(grpc::CallbackServerContext* context,
                                                        const v1::GetClusterStateRequest* request,
                                                        v1::ClusterState* response) {
  return OnLoop(loop_, kOperator, gate_->Enter(*context), context, [response](DecisionLoop& loop) {
    loop.FillState(*response);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::StepSummary>* AdminService::WatchSteps(grpc::CallbackServerContext* context,
                                                                    const v1::WatchStepsRequest* request) {
  if (absl::Status enter = gate_->Enter(*context); !enter.ok()) return new RefusedSteps(enter);
  return steps_->Subscribe(request->has_every() ? request->every() : 1);
}

grpc::ServerUnaryReactor* AdminService::DrainWorker(grpc::CallbackServerContext* context,
                                                    const v1::DrainWorkerRequest* request,
                                                    v1::DrainWorkerResponse* response) {
  return OnLoop(loop_, kOperator, gate_->Enter(*context), context,
                [request](DecisionLoop& loop) { return loop.DrainWorker(request->worker_id()); });
}

grpc::ServerUnaryReactor* AdminService::SetPolicy(grpc::CallbackServerContext* context,
                                                  const v1::SetPolicyRequest* request,
                                                  v1::SetPolicyResponse* response) {
  return OnLoop(loop_, kOperator, gate_->Enter(*context), context,
                [request](DecisionLoop& loop) { return loop.SetPolicy(request->policy()); });
}

}  // namespace bfio::router
