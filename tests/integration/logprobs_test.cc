// Log-probabilities of generated tokens equal those that transformers computes, through every API and
// whatever happens to workers and router.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/golden.h"
#include "tests/testing/resuming_client.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {
namespace {

constexpr char kGolden[] = "qwen3";
constexpr uint32_t kTop = 5;
// As the engine's own test: fp32 sums in another order.
constexpr double kTolerance = 1e-3;

std::vector<std::string> CpuFlags() {
  return {"--engine=cpu", absl::StrCat("--model=tests/golden/", kGolden), "--slots=4", "--kv_tokens=4096",
          "--token_budget=48"};
}

ClusterOptions CpuCluster(int workers) {
  return {.worker_processes = workers,
          .router_flags = {absl::StrCat("--step_timeout=", 5 * kSlowdown, "s")},
          .worker_flags = CpuFlags()};
}

// The prompt that a golden row follows, and one token.
v1::GenerateRequest RowRequest(const Golden& golden, int row) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(golden.tokens.begin(),
                                                  golden.tokens.begin() + golden.prompt + row);
  request.set_max_new_tokens(1);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_logprobs(kTop);
  return request;
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

TEST(LogprobsTest, AreThoseOfTransformersLogits) {
  const Golden golden(kGolden);
  Cluster cluster(CpuCluster(2));
  ASSERT_TRUE(cluster.ok());
  for (size_t i = 0; i < golden.rows.size(); ++i) {
    const int row = golden.rows[i];
    SCOPED_TRACE(row);
    const GenerateResult result = Generate(cluster.inference(), RowRequest(golden, row));
    ASSERT_NO_FATAL_FAILURE(ExpectComplete(result, 1));
    const auto logprob = [&](uint32_t id) {
      return golden.logits[i * golden.vocab() + id] - golden.logsumexp[static_cast<size_t>(row)];
    };
    EXPECT_EQ(result.tokens[0], golden.top1[static_cast<size_t>(row)]);
    EXPECT_NEAR(result.logprobs.token_logprobs(0), logprob(result.tokens[0]), kTolerance);
    EXPECT_EQ(result.logprobs.top_token_ids(0), result.tokens[0]);
    std::vector<uint32_t> ids(golden.vocab());
    std::iota(ids.begin(), ids.end(), 0);
    std::sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return logprob(a) > logprob(b); });
    for (int n = 0; n < static_cast<int>(kTop); ++n) {
      const uint32_t id = result.logprobs.top_token_ids(n);
      EXPECT_NEAR(result.logprobs.top_logprobs(n), logprob(id), kTolerance);
      EXPECT_NEAR(logprob(id), logprob(ids[static_cast<size_t>(n)]), kTolerance) << "not the most likely";
    }
  }
  cluster.StopCleanly();
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

TEST(LogprobsTest, OutliveWorkersRoutersAndConnections) {
  constexpr int kRequests = 6;
  constexpr uint32_t kOutput = 300;
  Cluster cluster(CpuCluster(3));
  ASSERT_TRUE(cluster.ok());
  std::vector<v1::Logprobs> expected;
  for (int i = 0; i < kRequests; ++i) {
    const GenerateResult result = Generate(cluster.inference(), LongRequest(kOutput, 100 + i));
    ASSERT_NO_FATAL_FAILURE(ExpectComplete(result, kOutput));
    expected.push_back(result.logprobs);
  }
  std::vector<std::unique_ptr<ResumingClient>> clients;
  for (int i = 0; i < kRequests; ++i) {
    clients.push_back(std::make_unique<ResumingClient>(cluster.address(),
                                                       LongRequest(kOutput, 100 + static_cast<uint64_t>(i))));
  }
  const auto all_have = [&](size_t tokens) {
    return Eventually([&] {
      return std::all_of(clients.begin(), clients.end(),
                         [&](const auto& client) { return client->tokens_seen() >= tokens; });
    });
  };
  ASSERT_TRUE(all_have(10));
  cluster.workers()[0].Signal(SIGKILL);
  for (const auto& client : clients) client->Break();
  ASSERT_TRUE(all_have(60));
  cluster.KillRouter();
  cluster.StartRouterAgain();
  for (int i = 0; i < kRequests; ++i) {
    const GenerateResult& result = clients[static_cast<size_t>(i)]->Join();
    ASSERT_NO_FATAL_FAILURE(ExpectComplete(result, kOutput));
    EXPECT_TRUE(result.contiguous);
    ExpectSame(result.logprobs, expected[static_cast<size_t>(i)]);
  }
}

}  // namespace
}  // namespace bfio::testing
