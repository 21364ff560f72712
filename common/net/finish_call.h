// A unary call that ends at once. Threads: gRPC's.
#ifndef BFIO_COMMON_NET_FINISH_CALL_H_
#define BFIO_COMMON_NET_FINISH_CALL_H_

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "common/net/status.h"

namespace bfio {

inline grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace bfio

#endif  // BFIO_COMMON_NET_FINISH_CALL_H_
