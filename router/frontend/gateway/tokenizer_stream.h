// A tokenizer's archive, in parts.
//
// Purpose: for gateways that have no copy of the model's tokenizer. A part is written when the client has
// read the last one, so a call holds one part, however slowly the client reads. Ownership, threads:
// ServerCall.
#ifndef BFIO_ROUTER_FRONTEND_GATEWAY_TOKENIZER_STREAM_H_
#define BFIO_ROUTER_FRONTEND_GATEWAY_TOKENIZER_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/status.h"
#include "common/net/any_message.h"
#include "common/net/first_messages.h"
#include "router/frontend/tokenizer/model_files.h"

namespace bfio::router::gateway {

using TokenizerStream = grpc::ServerBidiReactor<AnyMessage, AnyMessage>;

// gRPC owns the result. The stream ends with `allowed` if that is an error, before its request is received
// (by `messages`, which outlives it), and with FAILED_PRECONDITION where `model` is null.
TokenizerStream* StreamTokenizer(grpc::CallbackServerContext* context, const absl::Status& allowed,
                                 FirstMessages* messages, std::shared_ptr<const ModelFiles> model);

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_GATEWAY_TOKENIZER_STREAM_H_
