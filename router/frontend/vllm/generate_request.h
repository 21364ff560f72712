// vllm.grpc.engine.GenerateRequest as domain requests: checked and converted here, and nowhere else.
//
// Purpose: whatever a gateway sends, what gets past this is in range. A field that no engine behind the
// router can honour is refused by name; fields that this version does not declare are dropped. Pure; any
// thread.
#ifndef BFIO_ROUTER_FRONTEND_VLLM_GENERATE_REQUEST_H_
#define BFIO_ROUTER_FRONTEND_VLLM_GENERATE_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engines/vllm.pb.h"
#include "router/requests/limits.h"
#include "router/requests/request.h"

namespace bfio::router::vllm {

namespace pb = ::vllm::grpc::engine;

// Outputs of one request; texts that end them, each of which is looked for with every token.
inline constexpr uint32_t kMaxOutputs = 128;
inline constexpr int kMaxStops = 16;
inline constexpr size_t kMaxStopBytes = 256;

// What a request gets where it says nothing, and what can be done for it.
struct RequestContext {
  RequestLimits limits;
  // The longest prompt + output of a request; 0: not known.
  int64_t max_sequence_tokens = 0;
  // Why outputs cannot be searched for texts that end them; empty: they can.
  std::string no_stop_texts;
};

struct ConvertedRequest {
  // Of the first output.
  ClientRequest request;
  uint32_t outputs = 1;
  // Tokens come as they are made; otherwise at the end.
  bool stream = false;
  // Texts that end an output, and whether special tokens are part of the text.
  std::vector<std::string> stops;
  bool special_text = false;
};

// INVALID_ARGUMENT naming field, value and limit; UNAVAILABLE for a request without max_tokens while no
// worker has said how many it holds.
absl::StatusOr<ConvertedRequest> Convert(const pb::GenerateRequest& request, std::string tenant,
                                         const RequestContext& context);

// The request of the output `index`, named apart from the others and with another seed, and that name.
std::string OutputName(const std::string& request_id, uint32_t index);
ClientRequest OutputRequest(const ClientRequest& first, uint32_t index);

}  // namespace bfio::router::vllm

#endif  // BFIO_ROUTER_FRONTEND_VLLM_GENERATE_REQUEST_H_
