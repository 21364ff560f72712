// The server's side of a unary call whose request is received only once the caller may make the call.
//
// Purpose: one shape for the calls of a CallService: allowed or refused by what the headers say, then the
// request, then the reply. Ownership: a call owns itself until OnDone; whoever owes it a reply shares it.
// Threads: gRPC's; Reply from any.
#ifndef BFIO_COMMON_NET_UNARY_CALL_H_
#define BFIO_COMMON_NET_UNARY_CALL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/first_messages.h"
#include "common/net/status.h"
#include "common/net/stream_writer.h"

namespace bfio {

template <typename Request, typename Response>
class UnaryCall final : public StreamWriter<grpc::ServerBidiReactor<Request, Response>, Response>,
                        public FirstMessages::Call,
                        public std::enable_shared_from_this<UnaryCall<Request, Response>> {
 public:
  // Does what the request asks for; the call is told the outcome by Reply, once, now or later.
  using Handler = absl::AnyInvocable<void(std::shared_ptr<UnaryCall>, const Request&) &&>;

  // What gRPC gets. A call that is not `allowed` ends with that status and receives nothing. `messages`
  // outlives the call.
  static UnaryCall* Begin(grpc::CallbackServerContext* context, const absl::Status& allowed,
                          FirstMessages* messages, Handler handler) {
    UnaryCall* const call = Create(context, messages, std::move(handler));
    if (allowed.ok()) {
      messages->Begin(call->shared_from_this());
    } else {
      call->Reply(allowed);
    }
    return call;
  }
  // The same for a call that is answered without its request.
  static UnaryCall* Create(grpc::CallbackServerContext* context, FirstMessages* messages, Handler handler) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(context, messages, std::move(handler)));
    call->Open(call);
    return call.get();  // kept alive by itself until OnDone
  }

  // Later replies are ignored.
  void Reply(absl::StatusOr<Response> response) {
    MutexLock lock(&mutex_);
    if (!this->SetEnd(ToGrpcStatus(response.status()))) return;
    if (response.ok()) response_ = *std::move(response);
    this->Advance();
  }

  bool Receive() override {
    MutexLock lock(&mutex_);
    if (this->ended()) return false;
    GrpcHandOver(this);
    this->StartRead(&request_);
    return true;
  }
  void OnTooLate() override { Reply(absl::DeadlineExceededError("the request did not come in time")); }

  void OnReadDone(bool ok) override {
    const GrpcReaction reaction(this);
    messages_->End(*this);
    if (!ok) return Reply(absl::InvalidArgumentError("no request that can be read"));
    std::move(handler_)(this->shared_from_this(), request_);
    request_ = Request();
  }

 private:
  using Writer = StreamWriter<grpc::ServerBidiReactor<Request, Response>, Response>;
  using Writer::mutex_;

  UnaryCall(grpc::CallbackServerContext* context, FirstMessages* messages, Handler handler)
      : Writer(context), messages_(messages), handler_(std::move(handler)) {}

  bool Next(Response& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!response_.has_value()) return false;
    message = *std::move(response_);
    response_.reset();
    return true;
  }

  FirstMessages* const messages_;
  Handler handler_;
  Request request_;  // belongs to gRPC while it is received
  std::optional<Response> response_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio

#endif  // BFIO_COMMON_NET_UNARY_CALL_H_
