// SGLang's scheduler API (sglang.grpc.scheduler.SglangScheduler) as the router calls it.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/json/json_reader.h"
#include "engines/sglang.pb.h"
#include "router/engine_link/protocol/engine_protocol.h"
#include "router/engine_link/protocol/protocol_client.h"

namespace bfio::router {
namespace sglang {
namespace {

namespace pb = ::sglang::grpc::scheduler;

struct Messages {
  using GenerateRequest = pb::GenerateRequest;
  using GenerateResponse = pb::GenerateResponse;
  using GetServerInfoResponse = pb::GetServerInfoResponse;
  using GetModelInfoResponse = pb::GetModelInfoResponse;
  using GetLoadsResponse = pb::GetLoadsResponse;
  using HealthCheckResponse = pb::HealthCheckResponse;
};

// Outputs that end by their length may be somewhat shorter than the longest sequence allows.
class SglangEngine final : public EngineProtocolOf<Messages> {
 public:
  SglangEngine()
      : EngineProtocolOf({.name = "sglang.grpc.scheduler.SglangScheduler",
                          .chunks_count_all = true,
                          .slots_of_loads = true}) {}

  absl::Status Check(const EngineCall& call) const override {
    const Sampling& sampling = call.sampling;
    const bool greedy = sampling.temperature.value_or(0) == 0 || sampling.top_k == 1u;
    if (call.passed.on || greedy || !sampling.seed) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "SGLang's protocol does not support sampling.seed, which the router also sets for resumable "
        "requests: set temperature to 0, or neither seed nor resumable");
  }
  MessagePtr AbortOf(const std::string& name) const override {
    auto request = std::make_unique<pb::AbortRequest>();
    request->set_request_id(name);
    return request;
  }

 private:
  pb::GenerateRequest ToPass(const EngineCall& call, pb::GenerateRequest request) const override {
    pb::SamplingParams& sampling = *request.mutable_sampling_params();
    if (sampling.n() > 1) sampling.set_n(1);
    if (!sampling.has_max_new_tokens() || !call.prompt.empty())
      sampling.set_max_new_tokens(call.max_new_tokens);
    if (call.prompt.empty()) return request;
    request.mutable_tokenized()->mutable_input_ids()->Add(call.prompt.begin(), call.prompt.end());
    const auto made = static_cast<uint32_t>(call.prompt.size());
    sampling.set_min_new_tokens(sampling.min_new_tokens() - std::min(sampling.min_new_tokens(), made));
    return request;
  }
  pb::GenerateRequest Translate(const EngineCall& call) const override {
    pb::GenerateRequest request;
    request.mutable_tokenized()->mutable_input_ids()->Add(call.prompt.begin(), call.prompt.end());
    request.set_logprob_start_len(-1);
    pb::SamplingParams& sampling = *request.mutable_sampling_params();
    sampling.set_max_new_tokens(call.max_new_tokens);
    sampling.mutable_stop_token_ids()->Add(call.stop_token_ids.begin(), call.stop_token_ids.end());
    sampling.set_ignore_eos(call.ignore_eos);
    // All fields are set as gateways set them.
    sampling.set_n(1);
    sampling.set_repetition_penalty(1);
    sampling.set_skip_special_tokens(true);
    sampling.set_temperature(call.sampling.temperature.value_or(0));
    sampling.set_top_p(call.sampling.top_p.value_or(1));
    sampling.set_top_k(call.sampling.top_k ? static_cast<int32_t>(*call.sampling.top_k) : -1);
    return request;
  }
  void Describe(const pb::GetServerInfoResponse& server, EngineDescription& description) const override {
    const auto argument_of = [&](const char* argument) {
      const auto it = server.server_args().fields().find(argument);
      return it == server.server_args().fields().end() ? google::protobuf::Value() : it->second;
    };
    const auto number = [&](const char* argument) {
      const double value = argument_of(argument).number_value();
      return value >= 1 && value <= std::numeric_limits<int32_t>::max() ? static_cast<int32_t>(value) : 0;
    };
    // Newer servers report `--dp-size N --enable-dp-attention` as attn_dp_size only.
    const int64_t ranks = int64_t{std::max(1, number("dp_size"))} * std::max(1, number("attn_dp_size"));
    description.ranks = static_cast<int32_t>(std::min<int64_t>(ranks, std::numeric_limits<int32_t>::max()));
    description.slots = number("max_running_requests") / description.ranks;
    description.kv_tokens = server.max_total_num_tokens();
    const std::string role = argument_of("disaggregation_mode").string_value();
    if (role != "prefill" && role != "decode") return;
    description.hands_over = role == "prefill";
    description.kv_connector =
        absl::StrCat("sglang/", argument_of("disaggregation_transfer_backend").string_value());
    description.kv_bootstrap_port = std::min(number("disaggregation_bootstrap_port"), 65'535);
  }
  void HandOver(const EngineCall& call, pb::GenerateRequest& request) const override {
    const auto fields =
        ReadJsonObject(call.hands_over ? KvConnectorOf(call.kv_source.connector).ToCompute(call.kv_source)
                                       : call.hand_off->parameters,
                       "");
    if (!fields.ok()) return;
    pb::DisaggregatedParams& room = *request.mutable_disaggregated_params();
    room.set_bootstrap_host(fields->value("bootstrap_host", ""));
    room.set_bootstrap_port(fields->value("bootstrap_port", 0));
    room.set_bootstrap_room(fields->value("bootstrap_room", 0));
  }
};

}  // namespace
}  // namespace sglang

std::unique_ptr<EngineClient> NewSglangClient(const EngineAddress& engine) {
  static const auto& protocol = *new sglang::SglangEngine;
  return NewProtocolClient(protocol, engine, engine.pinned);
}

}  // namespace bfio::router
