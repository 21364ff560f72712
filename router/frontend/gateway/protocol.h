// An engine's protocol as gateways call it.
//
// Purpose: calls (gateway_service.h, generate_stream.h) are the same for all protocols and hold their
// messages as google::protobuf::Message; a Protocol makes, reads and converts them. To implement one, derive
// from ProtocolOf (protocol_of.h). Pure; any thread.
#ifndef BFIO_ROUTER_FRONTEND_GATEWAY_PROTOCOL_H_
#define BFIO_ROUTER_FRONTEND_GATEWAY_PROTOCOL_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/frontend/gateway/answers.h"
#include "router/frontend/gateway/request_fields.h"
#include "router/frontend/request_handler.h"
#include "router/frontend/tokenizer/model_files.h"
#include "router/requests/logprobs.h"
#include "router/requests/passed.h"

namespace bfio::router::gateway {

using google::protobuf::Message;
using MessagePtr = std::unique_ptr<Message>;

// Tokens of an output, for a message.
struct OutputPart {
  absl::string_view request_id;
  uint32_t index = 0;
  absl::Span<const uint32_t> tokens;
  // Of `tokens`; empty: not requested.
  LogprobsView logprobs;
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
};

// How an output has ended.
struct OutputEnd {
  const char* reason = "";
  std::optional<uint32_t> matched_token;
  absl::string_view matched_text;
};

// What the router reads of an engine's message that passes.
struct PassedPart {
  bool ends = false;
  // Tokens of a message that does not end the output.
  uint32_t tokens = 0;
};

class Protocol {
 public:
  struct Traits {
    // Of the service, such as "vllm.grpc.engine.VllmEngine".
    const char* name = "";
    // A chunk's completion_tokens count the whole output so far; otherwise the chunk.
    bool chunks_count_all = false;
    // A token that ends an output is named even if the request does not list it (end of sequence).
    bool names_eos = false;
  };
  // The types of the messages that the calls receive and reuse, as empty messages.
  struct Types {
    const Message& generate_request;
    const Message& generate_response;
    const Message& abort_request;
    const Message& loads_request;
  };

  Protocol(const Traits& traits, const Types& types) : traits(traits), types(types) {}
  virtual ~Protocol() = default;

  const Traits traits;
  const Types types;

  // --- Generate ---

  // The request in the router's terms; uses up `request`. A request that passes (RequestContext::passes) is
  // not checked for errors that the engine detects itself. A field that bfio's workers do not support is
  // refused by name, and one that this version does not declare by number. INVALID_ARGUMENT naming field,
  // value and limit; UNAVAILABLE for a request without a bound of its output while no worker has reported its
  // longest sequence.
  virtual absl::StatusOr<ConvertedRequest> Convert(Message& request, std::string tenant,
                                                   const RequestContext& context) const = 0;
  // `response` holds any earlier response, whose memory is reused.
  virtual void FillChunk(const OutputPart& part, Message& response) const = 0;
  virtual void FillComplete(const OutputPart& part, const OutputEnd& end, Message& response) const = 0;
  // Empty: the message is of another protocol.
  virtual std::optional<PassedPart> ReadPassed(const Passed& message) const = 0;
  // Copies it, with the client's name of the request and its number of the output.
  virtual void FillPassed(const Passed& message, absl::string_view request_id, uint32_t index,
                          Message& response) const = 0;

  // --- Abort ---

  virtual std::vector<std::string> AbortedIds(const Message& request) const = 0;
  virtual MessagePtr Aborted(bool found) const = 0;

  // --- the engine ---

  virtual MessagePtr Health(bool ready) const = 0;
  // `model` may be null: then only its name is known.
  virtual MessagePtr ModelInfo(const std::string& name, const ModelFiles* model,
                               const Serving& serving) const = 0;
  // `dtype`: ModelFiles::dtype.
  virtual MessagePtr ServerInfo(const Loads& loads, absl::Duration uptime,
                                const std::string& dtype) const = 0;
  // The rank that a request for loads names.
  virtual std::optional<int32_t> LoadsRank(const Message& request) const = 0;
  // NOT_FOUND: the rank is not 0.
  virtual absl::StatusOr<MessagePtr> LoadsOf(const Loads& loads, std::optional<int32_t> rank) const = 0;
};

// The protocols; they live forever.
const Protocol& VllmProtocol();
const Protocol& SglangProtocol();

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_GATEWAY_PROTOCOL_H_
