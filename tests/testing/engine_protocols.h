// The gRPC protocols between gateways and engines, for tests that run with each of them.
//
// Purpose: a protocol is a type with its messages and service, and functions for the fields that differ.
// `for (const auto& p : ...)` does not work with types, so such tests are typed: EngineProtocols lists all.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engines/sglang.grpc.pb.h"
#include "engines/vllm.grpc.pb.h"

namespace bfio::testing {

namespace common_pb = ::smg::grpc::common;

// The request that SMG 1.13 (SGLang's model gateway) sends for `prompt` if only the length is set, except
// that it is greedy.
template <typename Request>
Request PlainRequest(const std::vector<uint32_t>& prompt) {
  Request request;
  request.mutable_tokenized()->mutable_input_ids()->Add(prompt.begin(), prompt.end());
  auto& sampling = *request.mutable_sampling_params();
  sampling.set_temperature(0);
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  sampling.set_skip_special_tokens(true);
  sampling.set_spaces_between_special_tokens(true);
  sampling.set_n(1);
  return request;
}

struct Vllm {
  using Service = ::vllm::grpc::engine::VllmEngine;
  using GenerateRequest = ::vllm::grpc::engine::GenerateRequest;
  using GenerateResponse = ::vllm::grpc::engine::GenerateResponse;
  using SamplingParams = ::vllm::grpc::engine::SamplingParams;
  using AbortRequest = ::vllm::grpc::engine::AbortRequest;
  using AbortResponse = ::vllm::grpc::engine::AbortResponse;
  using HealthCheckRequest = ::vllm::grpc::engine::HealthCheckRequest;
  using HealthCheckResponse = ::vllm::grpc::engine::HealthCheckResponse;
  using GetModelInfoRequest = ::vllm::grpc::engine::GetModelInfoRequest;
  using GetModelInfoResponse = ::vllm::grpc::engine::GetModelInfoResponse;
  using GetServerInfoRequest = ::vllm::grpc::engine::GetServerInfoRequest;
  using GetServerInfoResponse = ::vllm::grpc::engine::GetServerInfoResponse;
  using GetLoadsRequest = ::vllm::grpc::engine::GetLoadsRequest;
  using GetLoadsResponse = ::vllm::grpc::engine::GetLoadsResponse;

  // The name of the protocol in flags.
  static constexpr char kName[] = "vllm";
  static constexpr char kService[] = "vllm.grpc.engine.VllmEngine";
  static constexpr char kMaxTokens[] = "max_tokens";
  // A chunk's completion_tokens count the output so far, and not only the chunk.
  static constexpr bool kChunksCountAll = false;
  // A token that ends an output is named even if the request does not list it.
  static constexpr bool kNamesEos = false;
  // GetLoads reports for each rank the KV tokens of all ranks of the server together.
  static constexpr bool kKvOfAllRanks = true;

  static GenerateRequest Plain(const std::vector<uint32_t>& prompt) {
    return PlainRequest<GenerateRequest>(prompt);
  }
  static void SetMaxTokens(SamplingParams& sampling, uint32_t tokens) { sampling.set_max_tokens(tokens); }
  static void ClearMaxTokens(SamplingParams& sampling) { sampling.clear_max_tokens(); }
  static uint32_t MaxTokens(const SamplingParams& sampling) { return sampling.max_tokens(); }
  static void SetMinTokens(SamplingParams& sampling, uint32_t tokens) { sampling.set_min_tokens(tokens); }
  static void RequestLogprobs(GenerateRequest& request, int32_t top) {
    request.mutable_sampling_params()->set_logprobs(top);
  }
  static AbortRequest AbortOf(const std::string& id) {
    AbortRequest request;
    request.add_request_ids(id);
    return request;
  }
  // Whether a request without a temperature is sampled.
  static bool Samples(const GenerateRequest& request) { return !request.sampling_params().has_temperature(); }
  static bool WantsLogprobs(const GenerateRequest& request) {
    return request.sampling_params().has_logprobs();
  }
  static std::vector<std::string> AbortedIds(const AbortRequest& request) {
    return {request.request_ids().begin(), request.request_ids().end()};
  }
  // A server's description of itself.
  static void Describe(int32_t ranks, int32_t slots, int32_t /*kv_tokens*/, GetServerInfoResponse& server) {
    server.set_server_type("vllm-grpc");
    server.set_data_parallel_size(ranks);
    server.set_max_num_seqs(slots);
  }
  // Number of ranks, and slots of one, that a server reports.
  static int64_t Ranks(const GetServerInfoResponse& server) { return server.data_parallel_size(); }
  static int64_t Slots(const GetServerInfoResponse& server) { return server.max_num_seqs(); }
};

struct Sglang {
  using Service = ::sglang::grpc::scheduler::SglangScheduler;
  using GenerateRequest = ::sglang::grpc::scheduler::GenerateRequest;
  using GenerateResponse = ::sglang::grpc::scheduler::GenerateResponse;
  using SamplingParams = ::sglang::grpc::scheduler::SamplingParams;
  using AbortRequest = ::sglang::grpc::scheduler::AbortRequest;
  using AbortResponse = ::sglang::grpc::scheduler::AbortResponse;
  using HealthCheckRequest = ::sglang::grpc::scheduler::HealthCheckRequest;
  using HealthCheckResponse = ::sglang::grpc::scheduler::HealthCheckResponse;
  using GetModelInfoRequest = ::sglang::grpc::scheduler::GetModelInfoRequest;
  using GetModelInfoResponse = ::sglang::grpc::scheduler::GetModelInfoResponse;
  using GetServerInfoRequest = ::sglang::grpc::scheduler::GetServerInfoRequest;
  using GetServerInfoResponse = ::sglang::grpc::scheduler::GetServerInfoResponse;
  using GetLoadsRequest = ::sglang::grpc::scheduler::GetLoadsRequest;
  using GetLoadsResponse = ::sglang::grpc::scheduler::GetLoadsResponse;

  static constexpr char kName[] = "sglang";
  static constexpr char kService[] = "sglang.grpc.scheduler.SglangScheduler";
  static constexpr char kMaxTokens[] = "max_new_tokens";
  static constexpr bool kChunksCountAll = true;
  static constexpr bool kNamesEos = true;
  static constexpr bool kKvOfAllRanks = false;

  static GenerateRequest Plain(const std::vector<uint32_t>& prompt) {
    auto request = PlainRequest<GenerateRequest>(prompt);
    request.mutable_tokenized()->set_original_text("abc");
    request.mutable_sampling_params()->set_top_k(-1);
    request.set_logprob_start_len(-1);
    return request;
  }
  static void SetMaxTokens(SamplingParams& sampling, uint32_t tokens) { sampling.set_max_new_tokens(tokens); }
  static void ClearMaxTokens(SamplingParams& sampling) { sampling.clear_max_new_tokens(); }
  static uint32_t MaxTokens(const SamplingParams& sampling) { return sampling.max_new_tokens(); }
  static void SetMinTokens(SamplingParams& sampling, uint32_t tokens) { sampling.set_min_new_tokens(tokens); }
  static void RequestLogprobs(GenerateRequest& request, int32_t top) {
    request.set_return_logprob(true);
    request.set_logprob_start_len(-1);
    request.set_top_logprobs_num(top);
  }
  static AbortRequest AbortOf(const std::string& id) {
    AbortRequest request;
    request.set_request_id(id);
    return request;
  }
  static bool Samples(const GenerateRequest&) { return false; }
  static bool WantsLogprobs(const GenerateRequest& request) { return request.return_logprob(); }
  static std::vector<std::string> AbortedIds(const AbortRequest& request) { return {request.request_id()}; }
  static void Describe(int32_t ranks, int32_t slots, int32_t kv_tokens, GetServerInfoResponse& server) {
    auto& args = *server.mutable_server_args()->mutable_fields();
    args["dp_size"].set_number_value(ranks);
    args["max_running_requests"].set_number_value(slots * ranks);
    args["chunked_prefill_size"].set_string_value("not a number");
    server.set_max_total_num_tokens(kv_tokens);
  }
  static int64_t Ranks(const GetServerInfoResponse& server) {
    return static_cast<int64_t>(server.server_args().fields().at("dp_size").number_value());
  }
  static int64_t Slots(const GetServerInfoResponse& server) {
    return static_cast<int64_t>(server.server_args().fields().at("max_running_requests").number_value());
  }
};

using EngineProtocols = ::testing::Types<Vllm, Sglang>;
// Names typed tests by protocol: Suite/vllm.Test.
struct ProtocolNames {
  template <typename P>
  static std::string GetName(int) {
    return P::kName;
  }
};

}  // namespace bfio::testing
