// A gRPC service whose methods run before any message of their calls is received. GRPC receives the message
// of a unary or server-streaming call completely, whatever its size, before it runs the method, so a caller
// could fill memory before it is authenticated. Methods that are added here are bidirectional streams for the
// server; the bytes on the wire are the same for the client. The method decides when the message is received
// (FirstMessages). Threads: constructors only.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/net/first_messages.h"
#include "common/net/server_call.h"
#include "common/net/status.h"

namespace bfio {

// The server side of a unary call whose request is received only after the caller is authorised. A ServerCall
// with one request and one reply. Ownership: a call owns itself until OnDone; code that will reply later
// shares it. Threads: gRPC's; any for Reply.
template <typename Request, typename Response>
class UnaryCall final : public ServerCall<UnaryCall<Request, Response>, Request, Response> {
 public:
  // Handles the request; must call Reply once, now or later.
  using Handler = absl::AnyInvocable<void(std::shared_ptr<UnaryCall>, const Request&) &&>;

  // Returns the reactor for gRPC. If `allowed` is an error, the call ends with that status and receives
  // nothing. `messages` must outlive the call. `incoming`: the request is parsed into it.
  static UnaryCall* Begin(grpc::CallbackServerContext* context, const absl::StatusOr<Peer>& allowed,
                          FirstMessages* messages, Handler handler, Request incoming = Request()) {
    UnaryCall* const call = Create(context, std::move(handler), std::move(incoming));
    call->Base::Begin(allowed, messages);
    return call;
  }
  // For a call that is answered without its request.
  static UnaryCall* Create(grpc::CallbackServerContext* context, Handler handler = nullptr,
                           Request incoming = Request()) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(context, std::move(handler), std::move(incoming)));
    call->Open(call);
    return call.get();  // owns itself until OnDone
  }

  // Replies after the first are ignored.
  void Reply(absl::StatusOr<Response> response) {
    MutexLock lock(&mutex_);
    if (!this->SetEnd(ToGrpcStatus(response.status()))) return;
    if (response.ok()) response_ = *std::move(response);
    this->Advance();
  }

 private:
  using Base = ServerCall<UnaryCall, Request, Response>;
  using Base::mutex_;

  UnaryCall(grpc::CallbackServerContext* context, Handler handler, Request incoming)
      : Base(context, std::move(incoming)), handler_(std::move(handler)) {}

  void OnMessage(Request request) override { std::move(handler_)(this->shared_from_this(), request); }
  bool Next(Response& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!response_.has_value()) return false;
    message = *std::move(response_);
    response_.reset();
    return true;
  }

  Handler handler_;
  std::optional<Response> response_ ABSL_GUARDED_BY(mutex_);
};

class CallService : public grpc::Service {
 protected:
  // `name` is "/package.Service/Method", a literal. `begin` makes the reactor of a call, on gRPC's threads;
  // gRPC uses it until OnDone.
  void Add(const char* name, std::function<CallReactor*(grpc::CallbackServerContext*)> begin);

 private:
  int methods_ = 0;
};

}  // namespace bfio
