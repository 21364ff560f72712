// A gRPC service whose methods run before any message of their calls is received.
//
// Purpose: gRPC receives the message of a unary or server-streaming call completely, whatever its size,
// before it runs the method, so a caller could fill memory before it is authenticated. Methods that are added
// here are bidirectional streams for the server; the bytes on the wire are the same for the client. The
// method decides when the message is received (FirstMessages). Threads: constructors only.
#ifndef BFIO_COMMON_NET_CALL_SERVICE_H_
#define BFIO_COMMON_NET_CALL_SERVICE_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/service_type.h>

#include <functional>
#include <utility>

namespace bfio {

class CallService : public grpc::Service {
 protected:
  // `name` is "/package.Service/Method", a literal. `begin` makes the reactor of a call, on gRPC's threads;
  // gRPC uses it until OnDone.
  template <typename In, typename Out>
  void Add(const char* name,
           std::function<grpc::ServerBidiReactor<In, Out>*(grpc::CallbackServerContext*)> begin) {
    AddMethod(new grpc::internal::RpcServiceMethod(name, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodCallback(methods_++, new grpc::internal::CallbackBidiHandler<In, Out>(std::move(begin)));
  }

 private:
  int methods_ = 0;
};

}  // namespace bfio

#endif  // BFIO_COMMON_NET_CALL_SERVICE_H_
