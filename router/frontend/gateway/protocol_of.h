// What the engines' protocols have in common: messages with the same fields, under other numbers.
//
// Purpose: `Messages` names a protocol's messages; the fields that have the same names and meanings are
// filled and read here. Pure; any thread.
#ifndef BFIO_ROUTER_FRONTEND_GATEWAY_PROTOCOL_OF_H_
#define BFIO_ROUTER_FRONTEND_GATEWAY_PROTOCOL_OF_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "router/frontend/gateway/protocol.h"

namespace bfio::router::gateway {

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

#endif  // BFIO_ROUTER_FRONTEND_GATEWAY_PROTOCOL_OF_H_
