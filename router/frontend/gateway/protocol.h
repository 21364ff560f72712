// An engine's protocol as gateways call it. Calls (gateway_service.h, generate_stream.h) are the same for all
// protocols and hold their messages as google::protobuf::Message; a Protocol makes, reads and converts them.
// To implement one, derive from ProtocolOf (below). Pure; any thread.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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
  // For a call without a stream: adds an engine's message to `whole`, null before the first. Returns the
  // whole output as one message when it has ended, and null before that.
  virtual PassedPtr Fold(const Passed& message, MessagePtr& whole) const = 0;
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

// What the engines' protocols have in common: messages with the same fields, under other numbers. `Messages`
// names a protocol's messages; the fields that have the same names and meanings are filled and read here.
// Pure; any thread.
template <typename Messages>
class ProtocolOf : public Protocol {
 public:
  using GenerateRequest = typename Messages::GenerateRequest;
  using GenerateResponse = typename Messages::GenerateResponse;
  using AbortRequest = typename Messages::AbortRequest;
  using LoadsRequest = typename Messages::GetLoadsRequest;
  using LoadsResponse = typename Messages::GetLoadsResponse;

  explicit ProtocolOf(const Traits& traits)
      : Protocol(traits, {GenerateRequest::default_instance(), GenerateResponse::default_instance(),
                          AbortRequest::default_instance(), LoadsRequest::default_instance()}) {}

  void FillChunk(const OutputPart& part, Message& to) const final {
    auto& response = static_cast<GenerateResponse&>(to);
    auto& chunk = *response.mutable_chunk();
    chunk.mutable_token_ids()->Assign(part.tokens.begin(), part.tokens.end());
    FillPart(part, response, chunk);
  }
  void FillComplete(const OutputPart& part, const OutputEnd& end, Message& to) const final {
    auto& response = static_cast<GenerateResponse&>(to);
    response.Clear();
    auto& complete = *response.mutable_complete();
    complete.mutable_output_ids()->Assign(part.tokens.begin(), part.tokens.end());
    FillPart(part, response, complete);
    complete.set_finish_reason(end.reason);
    if (end.matched_token) complete.set_matched_token_id(*end.matched_token);
    if (!end.matched_text.empty()) complete.set_matched_stop_str(std::string(end.matched_text));
  }
  std::optional<PassedPart> ReadPassed(const Passed& message) const final {
    const GenerateResponse* const response = PassedMessage<GenerateResponse>::In(&message);
    if (response == nullptr) return std::nullopt;
    return PassedPart{response->has_complete(), static_cast<uint32_t>(response->chunk().token_ids_size())};
  }
  PassedPtr Fold(const Passed& message, MessagePtr& whole) const final {
    const GenerateResponse& from = *PassedMessage<GenerateResponse>::In(&message);
    if (whole == nullptr) whole = std::make_unique<GenerateResponse>();
    auto& so_far = *static_cast<GenerateResponse&>(*whole).mutable_complete();
    const auto& chunk = from.chunk();
    so_far.mutable_output_ids()->MergeFrom(chunk.token_ids());
    if (chunk.has_output_logprobs()) so_far.mutable_output_logprobs()->MergeFrom(chunk.output_logprobs());
    if (chunk.has_input_logprobs()) so_far.mutable_input_logprobs()->MergeFrom(chunk.input_logprobs());
    if (!from.has_complete()) return nullptr;
    // The end of a stream may repeat what its last chunk had, and has everything that chunks have not.
    GenerateResponse end = from;
    end.mutable_complete()->clear_output_ids();
    if (so_far.has_output_logprobs()) end.mutable_complete()->clear_output_logprobs();
    if (so_far.has_input_logprobs()) end.mutable_complete()->clear_input_logprobs();
    so_far.set_completion_tokens(static_cast<uint32_t>(so_far.output_ids_size()));
    end.mutable_complete()->MergeFrom(so_far);
    return PassedMessage<GenerateResponse>::Make(std::move(end));
  }
  void FillPassed(const Passed& message, absl::string_view request_id, uint32_t index,
                  Message& to) const final {
    auto& response = static_cast<GenerateResponse&>(to);
    response = *PassedMessage<GenerateResponse>::In(&message);
    if (response.has_chunk()) response.mutable_chunk()->set_index(index);
    if (response.has_complete()) response.mutable_complete()->set_index(index);
    SetRequestId(request_id, response);
  }

  MessagePtr Health(bool ready) const final {
    auto out = std::make_unique<typename Messages::HealthCheckResponse>();
    out->set_healthy(ready);
    out->set_message(ready ? "serving" : "not serving");
    return out;
  }
  MessagePtr ModelInfo(const std::string& name, const ModelFiles* model, const Serving& serving) const final {
    auto out = std::make_unique<typename Messages::GetModelInfoResponse>();
    out->set_is_generation(true);
    out->set_served_model_name(name);
    out->set_model_path(name);
    out->set_max_context_length(Clamped(serving.max_sequence_tokens));
    out->set_max_req_input_len(Clamped(serving.max_sequence_tokens));
    if (model == nullptr) return out;
    out->set_model_path(model->directory);
    out->set_tokenizer_path(model->directory);
    out->set_vocab_size(model->vocab_size);
    out->set_model_type(model->model_type);
    for (const std::string& architecture : model->architectures) out->add_architectures(architecture);
    for (const int32_t id : model->eos_token_ids) out->add_eos_token_ids(id);
    out->set_bos_token_id(model->bos_token_id);
    out->set_pad_token_id(model->pad_token_id);
    return out;
  }
  std::optional<int32_t> LoadsRank(const Message& from) const final {
    const auto& request = static_cast<const LoadsRequest&>(from);
    if (!request.has_dp_rank()) return std::nullopt;
    return request.dp_rank();
  }
  absl::StatusOr<MessagePtr> LoadsOf(const Loads& loads, std::optional<int32_t> rank) const final {
    if (rank.value_or(0) != 0)
      return absl::NotFoundError(absl::StrCat("dp_rank is ", *rank, "; data_parallel_size is 1"));
    auto out = std::make_unique<LoadsResponse>();
    out->set_timestamp(absl::FormatTime("%Y-%m-%dT%H:%M:%E6S+00:00", loads.timestamp, absl::UTCTimeZone()));
    out->set_version(loads.version);
    out->set_dp_rank_count(1);
    const RankLoad from = SumOf(loads);
    auto& load = *out->add_loads();
    load.set_num_running_reqs(Clamped(from.running_requests));
    load.set_num_waiting_reqs(Clamped(from.waiting_requests));
    load.set_num_total_reqs(Clamped(from.running_requests + from.waiting_requests));
    load.set_num_used_tokens(Clamped(from.used_tokens));
    load.set_max_total_num_tokens(Clamped(from.max_tokens));
    load.set_token_usage(TokenUsage(from));
    load.set_gen_throughput(from.tokens_per_second);
    load.set_utilization(load.token_usage());
    load.set_max_running_requests(Clamped(from.slots));
    // Cached prefixes are not subtracted.
    load.set_num_waiting_uncached_tokens(Clamped(from.waiting_tokens));
    SumUp(*out);
    return out;
  }

 protected:
  // Adds what a protocol says of all loads together. REQUIRES: there are loads.
  virtual void SumUp(LoadsResponse&) const {}

 private:
  static void SetRequestId(absl::string_view id, GenerateResponse& response) {
    // Only some protocols' responses name the request.
    if constexpr (requires { response.set_request_id(std::string()); })
      response.set_request_id(std::string(id));
  }
  template <typename Part>
  static void FillPart(const OutputPart& part, GenerateResponse& response, Part& to) {
    to.clear_output_logprobs();
    to.set_prompt_tokens(part.prompt_tokens);
    to.set_completion_tokens(part.completion_tokens);
    to.set_index(part.index);
    SetRequestId(part.request_id, response);
    if (part.logprobs.empty()) return;
    auto& out = *to.mutable_output_logprobs();
    out.mutable_token_logprobs()->Add(part.logprobs.tokens.begin(), part.logprobs.tokens.end());
    out.mutable_token_ids()->Add(part.tokens.begin(), part.tokens.end());
    for (size_t i = 0; part.logprobs.width() > 0 && i < part.logprobs.tokens.size(); ++i) {
      auto& top = *out.add_top_logprobs();
      for (const TopToken& one : part.logprobs.subspan(i, 1).top) {
        top.add_values(one.logprob);
        top.add_token_ids(one.id);
      }
    }
  }
};

}  // namespace bfio::router::gateway
