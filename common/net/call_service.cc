#include "common/net/call_service.h"

#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>

#include "common/net/channel.h"
#include "common/net/tsan_edge.h"

namespace bfio {
namespace {

class RefusedCall final : public CallReactor {
 public:
  explicit RefusedCall(const absl::Status& why) {
    GrpcHandOver(this);
    Finish(ToGrpcStatus(why));
  }
  void OnDone() override {
    GrpcTakeOver(this);
    delete this;
  }
};

}  // namespace

void CallService::Add(const char* name, std::function<CallReactor*(grpc::CallbackServerContext*)> begin) {
  AddMethod(new grpc::internal::RpcServiceMethod(name, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
  auto checked = [begin = std::move(begin)](grpc::CallbackServerContext* context) -> CallReactor* {
    if (const absl::Status headers = CheckHeaders(*context); !headers.ok()) return new RefusedCall(headers);
    return begin(context);
  };
  MarkMethodCallback(methods_++, new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
                                     std::move(checked)));
}

}  // namespace bfio
