// The gateways' protocols by the types that name them in tests.
#pragma once

#include <type_traits>

#include "router/frontend/gateway/protocol.h"
#include "tests/testing/engine_protocols.h"
#include "tests/testing/from_text.h"

namespace bfio::router::gateway {

template <typename P>
const Protocol& ProtocolFor() {
  return std::is_same_v<P, bfio::testing::Vllm> ? VllmProtocol() : SglangProtocol();
}

// The request that a gateway sends if only the length is set.
template <typename P>
typename P::GenerateRequest PlainOf() {
  auto request = P::Plain({5, 6, 7});
  request.set_request_id("chatcmpl-1");
  P::SetMaxTokens(*request.mutable_sampling_params(), 9);
  return request;
}

inline RequestContext PlainContext(bool passes = false) {
  RequestContext context;
  context.max_sequence_tokens = 1000;
  context.passes = passes;
  return context;
}

template <typename P>
absl::StatusOr<ConvertedRequest> ConvertTo(typename P::GenerateRequest request,
                                           const RequestContext& context = PlainContext()) {
  return ProtocolFor<P>().Convert(request, "acme", context);
}

}  // namespace bfio::router::gateway
