// Log-probabilities of generated tokens are the same through every API. That they are right is tested in
// tests/unit/worker/engine.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {
namespace {

constexpr char kGolden[] = "qwen3";
constexpr uint32_t kTop = 5;

std::vector<std::string> CpuFlags() {
  return {"--engine=cpu", absl::StrCat("--model=tests/golden/", kGolden), "--slots=4", "--kv_tokens=4096",
          "--token_budget=48"};
}

ClusterOptions CpuCluster(int workers) {
  return {.worker_processes = workers,
          .router_flags = {absl::StrCat("--step_timeout=", 5 * kSlowdown, "s")},
          .worker_flags = CpuFlags()};
}

// Sampled, so that the generated token is not always the most likely one.
v1::GenerateRequest LongRequest(uint32_t output, uint64_t seed) {
  v1::GenerateRequest request;
  request.set_request_id(absl::StrCat("long-", seed));
  for (uint32_t id = 1; id <= 9; ++id) request.mutable_token_ids()->add_ids(id * 7 % 256);
  request.set_max_new_tokens(output);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(seed);
  request.mutable_sampling()->set_logprobs(kTop);
  return request;
}

pb::GenerateRequest AsVllm(const v1::GenerateRequest& from, bool stream) {
  pb::GenerateRequest request;
  *request.mutable_tokenized()->mutable_input_ids() = from.token_ids().ids();
  pb::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_max_tokens(from.max_new_tokens());
  sampling.set_ignore_eos(true);
  sampling.set_temperature(from.sampling().temperature());
  sampling.set_seed(static_cast<int32_t>(from.sampling().seed()));
  sampling.set_logprobs(static_cast<int32_t>(from.sampling().logprobs()));
  request.set_stream(stream);
  return request;
}

void ExpectComplete(const GenerateResult& result, uint32_t tokens) {
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_EQ(result.tokens.size(), tokens);
  EXPECT_EQ(result.logprobs.token_logprobs_size(), static_cast<int>(tokens));
  EXPECT_EQ(result.logprobs.top_token_ids_size(), static_cast<int>(tokens * kTop));
}

void ExpectSame(const v1::Logprobs& got, const v1::Logprobs& want) {
  EXPECT_EQ(got.SerializeAsString(), want.SerializeAsString()) << "the same bits";
}

// The same for the engines' APIs.
template <typename Response>
void ExpectSame(const OutputsOf<Response>& got, const GenerateResult& want) {
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.tokens.at(0), want.tokens);
  const auto& logprobs = got.logprobs.at(0);
  EXPECT_EQ(Tokens(logprobs.token_ids().begin(), logprobs.token_ids().end()), want.tokens);
  v1::Logprobs packed;
  *packed.mutable_token_logprobs() = logprobs.token_logprobs();
  for (const auto& top : logprobs.top_logprobs()) {
    packed.mutable_top_token_ids()->MergeFrom(top.token_ids());
    packed.mutable_top_logprobs()->MergeFrom(top.values());
  }
  ExpectSame(packed, want.logprobs);
}

TEST(LogprobsTest, EveryApiGivesTheSame) {
  v1::GenerateRequest request = LongRequest(60, 3);
  {
    Cluster cluster(CpuCluster(2));
    ASSERT_TRUE(cluster.ok());
    const GenerateResult own = Generate(cluster.inference(), request);
    ASSERT_NO_FATAL_FAILURE(ExpectComplete(own, 60));
    const auto stub = StubAt(cluster.address());
    ExpectSame(Generate(*stub, AsVllm(request, true)), own);
    ExpectSame(Generate(*stub, AsVllm(request, false)), own);
    // Only the log-probabilities of the generated tokens; then none at all.
    pb::GenerateRequest few = AsVllm(request, true);
    few.mutable_sampling_params()->set_logprobs(0);
    const Outputs chosen = Generate(*stub, few);
    EXPECT_EQ(chosen.logprobs.at(0).token_logprobs_size(), 60);
    EXPECT_EQ(chosen.logprobs.at(0).top_logprobs_size(), 0);
    few.mutable_sampling_params()->clear_logprobs();
    EXPECT_TRUE(Generate(*stub, few).logprobs.empty());
  }
  // SGLang's protocol has no seed.
  request.mutable_sampling()->set_temperature(0);
  ClusterOptions options = CpuCluster(1);
  options.router_flags.push_back("--client_apis=bfio,sglang");
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  const GenerateResult own = Generate(cluster.inference(), request);
  ASSERT_NO_FATAL_FAILURE(ExpectComplete(own, 60));
  for (const bool stream : {true, false}) {
    Sglang::GenerateRequest asked = GreedyRequest<Sglang>(60, stream);
    *asked.mutable_tokenized()->mutable_input_ids() = request.token_ids().ids();
    asked.set_return_logprob(true);
    asked.set_logprob_start_len(-1);
    asked.set_top_logprobs_num(kTop);
    ExpectSame(GenerateAs<Sglang>(*StubOf<Sglang>(cluster.address()), asked), own);
  }
}

}  // namespace
}  // namespace bfio::testing
