// vLLM's engine API (vllm.grpc.engine.VllmEngine) as the router calls it.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "engines/vllm.pb.h"
#include "router/engine_link/protocol/engine_protocol.h"
#include "router/engine_link/protocol/protocol_client.h"

namespace bfio::router {
namespace vllm {
namespace {

namespace pb = ::vllm::grpc::engine;

struct Messages {
  using GenerateRequest = pb::GenerateRequest;
  using GenerateResponse = pb::GenerateResponse;
  using GetServerInfoResponse = pb::GetServerInfoResponse;
  using GetModelInfoResponse = pb::GetModelInfoResponse;
  using GetLoadsResponse = pb::GetLoadsResponse;
  using HealthCheckResponse = pb::HealthCheckResponse;
};

// GetServerInfo reports the slots of a rank, and the number of ranks of all servers of a model. A rank's KV
// tokens in GetLoads are num_gpu_blocks, which vLLM adds up over its ranks (smg_grpc_servicer).
class VllmEngine final : public EngineProtocolOf<Messages> {
 public:
  VllmEngine()
      : EngineProtocolOf({.name = "vllm.grpc.engine.VllmEngine",
                          .fills_context = true,
                          .loads_name_ranks = true,
                          .kv_of_all_ranks = true}) {}

  // vLLM's servicer tells the connector of each request that it refuses.
  MessagePtr RefusedOf(const std::string& parameters) const override {
    auto request = std::make_unique<pb::GenerateRequest>();
    request->set_request_id(absl::StrCat("bfio-frees-", absl::HashOf(parameters)));
    request->mutable_tokenized()->add_input_ids(0);
    request->mutable_sampling_params()->set_max_tokens(0);
    request->set_kv_transfer_params_json(parameters);
    return request;
  }

 private:
  pb::GenerateRequest ToPass(const EngineCall& call, pb::GenerateRequest request) const override {
    pb::SamplingParams& sampling = *request.mutable_sampling_params();
    if (sampling.n() > 1) {
      // vLLM also splits a call with several outputs into one request per output, with consecutive seeds.
      sampling.set_n(1);
      if (call.sampling.seed) sampling.set_seed(static_cast<int32_t>(*call.sampling.seed));
    }
    if (!sampling.has_max_tokens() || !call.prompt.empty()) sampling.set_max_tokens(call.max_new_tokens);
    if (call.prompt.empty()) return request;
    request.mutable_tokenized()->mutable_input_ids()->Add(call.prompt.begin(), call.prompt.end());
    const auto made = static_cast<uint32_t>(call.prompt.size());
    sampling.set_min_tokens(sampling.min_tokens() - std::min(sampling.min_tokens(), made));
    return request;
  }
  pb::GenerateRequest Translate(const EngineCall& call) const override {
    pb::GenerateRequest request;
    request.mutable_tokenized()->mutable_input_ids()->Add(call.prompt.begin(), call.prompt.end());
    pb::SamplingParams& sampling = *request.mutable_sampling_params();
    sampling.set_max_tokens(call.max_new_tokens);
    sampling.mutable_stop_token_ids()->Add(call.stop_token_ids.begin(), call.stop_token_ids.end());
    sampling.set_ignore_eos(call.ignore_eos);
    sampling.set_n(1);
    // Without a temperature vLLM samples at 1.
    sampling.set_temperature(call.sampling.temperature.value_or(0));
    if (call.sampling.top_p) sampling.set_top_p(*call.sampling.top_p);
    if (call.sampling.top_k) sampling.set_top_k(*call.sampling.top_k);
    // vLLM's seed is an int32 that must not be negative.
    if (call.sampling.seed)
      sampling.set_seed(static_cast<int32_t>(*call.sampling.seed & std::numeric_limits<int32_t>::max()));
    return request;
  }
  void Describe(const pb::GetServerInfoResponse& server, EngineDescription& description) const override {
    description.ranks = std::max(1, server.data_parallel_size());
    description.slots = server.max_num_seqs();
    description.hands_over = server.kv_role() == "kv_producer";
    description.kv_connector = server.kv_connector();
    description.kv_engine_id = server.kv_engine_id();
    description.kv_type = server.kv_cache_dtype();
    description.kv_block_tokens = server.block_size();
  }
  void HandOver(const EngineCall& call, pb::GenerateRequest& request) const override {
    if (!call.hands_over) return request.set_kv_transfer_params_json(call.hand_off->parameters);
    const KvConnector& connector = KvConnectorOf(call.kv_source.connector);
    request.set_kv_transfer_params_json(connector.ToCompute(call.kv_source));
    pb::SamplingParams& sampling = *request.mutable_sampling_params();
    sampling.set_max_tokens(1);
    sampling.clear_min_tokens();
    if (!connector.keeps_at_limit_only()) return;
    sampling.set_ignore_eos(true);
    sampling.clear_stop();
    sampling.clear_stop_token_ids();
  }
  std::string TakeHandOff(Message& message) const override {
    auto& complete = *static_cast<pb::GenerateResponse&>(message).mutable_complete();
    std::string parameters = std::move(*complete.mutable_kv_transfer_params_json());
    complete.clear_kv_transfer_params_json();
    return parameters;
  }
};

}  // namespace
}  // namespace vllm

std::unique_ptr<EngineClient> NewVllmClient(const EngineAddress& engine) {
  static const auto& protocol = *new vllm::VllmEngine;
  return NewProtocolClient(protocol, engine, /*pinned=*/true);
}

}  // namespace bfio::router
