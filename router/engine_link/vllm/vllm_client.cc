#include "router/engine_link/vllm/vllm_client.h"

#include <algorithm>
#include <limits>

#include "engines/vllm.grpc.pb.h"
#include "router/engine_link/protocol/protocol_client.h"

namespace bfio::router::vllm {
namespace {

namespace pb = ::vllm::grpc::engine;

// The client's request, except for the fields that the router sets: one output, the bound of its length, and
// the tokens of earlier placements.
pb::GenerateRequest ToPass(const EngineCall& call, pb::GenerateRequest request) {
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

pb::GenerateRequest Translate(const EngineCall& call) {
  pb::GenerateRequest request;
  request.mutable_tokenized()->mutable_input_ids()->Add(call.prompt.begin(), call.prompt.end());
  request.set_stream(true);
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

struct Wire {
  using Service = pb::VllmEngine;
  using GenerateRequest = pb::GenerateRequest;
  using GenerateResponse = pb::GenerateResponse;
  using GetServerInfoRequest = pb::GetServerInfoRequest;
  using GetServerInfoResponse = pb::GetServerInfoResponse;
  using GetModelInfoRequest = pb::GetModelInfoRequest;
  using GetModelInfoResponse = pb::GetModelInfoResponse;
  using GetLoadsRequest = pb::GetLoadsRequest;
  using GetLoadsResponse = pb::GetLoadsResponse;
  using HealthCheckRequest = pb::HealthCheckRequest;
  using HealthCheckResponse = pb::HealthCheckResponse;
  using SubscribeKvEventsRequest = ::smg::grpc::common::SubscribeKvEventsRequest;
  using KvEventBatch = ::smg::grpc::common::KvEventBatch;

  // A chunk's completion_tokens count only that chunk. An output ends by its length only at max_tokens or at
  // the longest sequence. GetServerInfo reports the slots of a rank, and the number of ranks of all servers
  // of a model. GetLoads reports the ranks of a server, and for each the KV tokens of all these ranks
  // together; a rank's usage is a share of that total (smg_grpc_servicer: num_gpu_blocks, which vLLM adds up,
  // times kv_cache_usage).
  static constexpr bool kChunksCountAll = false;
  static constexpr bool kFillsContext = true;
  static constexpr bool kLoadsNameRanks = true;
  static constexpr bool kSlotsOfLoads = false;
  static constexpr bool kKvOfAllRanks = true;

  static absl::Status Check(const EngineCall&) { return absl::OkStatus(); }
  static pb::GenerateRequest ToPass(const EngineCall& call, const pb::GenerateRequest& from) {
    return vllm::ToPass(call, from);
  }
  static pb::GenerateRequest Translate(const EngineCall& call) { return vllm::Translate(call); }
  // vLLM aborts a request when its call is cancelled.
  static void Abort(const std::shared_ptr<Service::Stub>&, const std::string&) {}
  static void Describe(const pb::GetServerInfoResponse& server, EngineDescription& description) {
    description.ranks = std::max(1, server.data_parallel_size());
    description.slots = server.max_num_seqs();
  }
};

}  // namespace

std::unique_ptr<EngineClient> NewVllmClient(const std::string& server) {
  return std::make_unique<ProtocolClient<Wire>>(server, /*pinned=*/true);
}

}  // namespace bfio::router::vllm
