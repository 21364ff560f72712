// A router and workers that act as an SGLang engine for gateways. vllm_api_test.cc covers what the API shares
// with vLLM's.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/cluster.h"
#include "tests/testing/sglang_calls.h"

namespace bfio::testing::sglang {
namespace {

using ::testing::SizeIs;

constexpr char kService[] = "/sglang.grpc.scheduler.SglangScheduler/";

class SglangApi : public ::testing::Test {
 protected:
  static ClusterOptions Options(std::vector<std::string> worker_flags) {
    return {
        .router_flags = {"--tokenizer=" + NumbersTokenizer(), "--max_waiting=8", "--client_apis=bfio,sglang"},
        .worker_flags = std::move(worker_flags)};
  }
  explicit SglangApi(std::vector<std::string> worker_flags = {"--c=0.0005", "--tl=0", "--slots=16",
                                                              "--max_sequence_tokens=100000"})
      : cluster_(Options(std::move(worker_flags))) {}
  void SetUp() override { ASSERT_TRUE(cluster_.ok()); }

  Cluster cluster_;
  const std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(cluster_.address(), grpc::InsecureChannelCredentials());
  const std::unique_ptr<pb::SglangScheduler::Stub> stub_ = pb::SglangScheduler::NewStub(channel_);
};

// Steps slow enough to act between them.
class SlowSglangApi : public SglangApi {
 protected:
  SlowSglangApi() : SglangApi({"--c=0.03", "--tl=0", "--slots=4", "--kv_tokens=100000"}) {}
};

// Tokens that a model computes, so that equal requests have equal outputs: the protocol has no seed.
class ComputedSglangApi : public SglangApi {
 protected:
  ComputedSglangApi()
      : SglangApi({"--engine=cpu", "--model=tests/golden/qwen3", "--slots=4", "--kv_tokens=4096",
                   "--cpu_threads=1"}) {}

  // The same through bfio.v1, greedy.
  Tokens Expected(uint32_t output) {
    v1::GenerateRequest own;
    for (uint32_t id = 1; id <= 7; ++id) own.mutable_token_ids()->add_ids(id);
    own.set_max_new_tokens(output);
    own.set_ignore_eos(true);
    const GenerateResult result = testing::Generate(cluster_.inference(), own);
    EXPECT_THAT(result.tokens, SizeIs(output));
    return result.tokens;
  }
};

TEST_F(ComputedSglangApi, BothApisGiveTheSameTokens) {
  const Tokens expected = Expected(40);
  for (const bool stream : {true, false}) {
    for (const uint32_t outputs : {1, 2}) {
      pb::GenerateRequest request = Request(40, stream);
      request.mutable_sampling_params()->set_n(outputs);
      const Outputs got = Generate(*stub_, request);
      ASSERT_TRUE(got.status.ok()) << got.status.error_message();
      ASSERT_THAT(got.ends, SizeIs(outputs));
      for (const auto& [index, end] : got.ends) {
        EXPECT_EQ(got.tokens.at(index), expected) << index;
        EXPECT_EQ(end.finish_reason(), "length");
        EXPECT_EQ(end.prompt_tokens(), 7u);
        EXPECT_EQ(end.completion_tokens(), 40u);
      }
    }
  }
}

TEST_F(ComputedSglangApi, StopTokensAndTextsEndOutputsAndAreNamed) {
  const Tokens all = Expected(20);
  size_t at = 3;
  while (std::find(all.begin(), all.begin() + at, all[at]) != all.begin() + at) ++at;
  const Tokens until(all.begin(), all.begin() + at + 1);
  pb::GenerateRequest request = Request(20);
  request.mutable_sampling_params()->add_stop_token_ids(all[at]);
  const Outputs by_token = Generate(*stub_, request);
  EXPECT_EQ(by_token.tokens.at(0), until);
  EXPECT_EQ(by_token.reason(), "stop");
  EXPECT_EQ(by_token.ends.at(0).matched_token_id(), all[at]);
  for (const bool stream : {true, false}) {
    request = Request(20, stream);
    const std::string text = absl::StrCat("<", all[at], ">");
    request.mutable_sampling_params()->add_stop(text);
    const Outputs by_text = Generate(*stub_, request);
    EXPECT_EQ(by_text.tokens.at(0), until);
    EXPECT_EQ(by_text.reason(), "stop");
    EXPECT_EQ(by_text.ends.at(0).matched_stop_str(), text);
  }
  EXPECT_TRUE(cluster_.WaitUntilIdle()) << "the workers have stopped, too";
}

TEST_F(SglangApi, TheRouterIsOneEngine) {
  grpc::ClientContext c1, c2, c3, c4, c5;
  pb::HealthCheckResponse health;
  ASSERT_TRUE(stub_->HealthCheck(&c1, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  pb::GetModelInfoResponse model;
  ASSERT_TRUE(stub_->GetModelInfo(&c2, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "numbers");
  EXPECT_GT(model.max_context_length(), 0);
  pb::GetServerInfoResponse server;
  ASSERT_TRUE(stub_->GetServerInfo(&c3, {}, &server).ok());
  EXPECT_EQ(server.server_args().fields().at("dp_size").number_value(), 1);
  EXPECT_EQ(server.server_args().fields().at("max_running_requests").number_value(), 32) << "of two workers";
  pb::GetLoadsResponse loads;
  ASSERT_TRUE(stub_->GetLoads(&c4, {}, &loads).ok());
  ASSERT_THAT(loads.loads(), SizeIs(1));
  EXPECT_EQ(loads.loads(0).max_running_requests(), 32);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("sglang.grpc.scheduler.SglangScheduler");
  grpc::health::v1::HealthCheckResponse status;
  ASSERT_TRUE(grpc::health::v1::Health::NewStub(channel_)->Check(&c5, request, &status).ok());
  EXPECT_EQ(status.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  EXPECT_EQ(RawCall(channel_, "/vllm.grpc.engine.VllmEngine/HealthCheck", "").second.error_code(),
            grpc::StatusCode::UNIMPLEMENTED)
      << "a gateway that probes finds one engine";
}

TEST_F(SlowSglangApi, AnAbortEndsEveryOutputWithWhatItHas) {
  pb::GenerateRequest request = Request(2000);
  request.set_request_id("victim");
  request.mutable_sampling_params()->set_n(2);
  Call call(*stub_, request);
  while (call.outputs().tokens.size() < 2) ASSERT_TRUE(call.Read());
  const auto abort = [&](const std::string& id) {
    pb::AbortRequest request;
    request.set_request_id(id);
    pb::AbortResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->Abort(&context, request, &response).ok());
    return response.success();
  };
  EXPECT_FALSE(abort("nobody"));
  EXPECT_TRUE(abort("victim"));
  const Outputs& outputs = call.End();
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  for (const uint32_t index : {0u, 1u}) {
    EXPECT_EQ(outputs.reason(index), "abort");
    EXPECT_EQ(outputs.ends.at(index).completion_tokens(), outputs.tokens.at(index).size());
  }
  EXPECT_TRUE(cluster_.WaitUntilIdle());
}

TEST_F(SglangApi, RecordedSessionsOfSmgGetTheirAnswers) {
  int calls = 0;
  for (const char* session : {"sglang_start", "sglang_chat", "sglang_refused"}) {
    calls += ReplaySession<pb::GenerateRequest, pb::GenerateResponse>(
        channel_, session, kService,
        [](const auto& request) { return request.sampling_params().max_new_tokens(); });
  }
  EXPECT_GE(calls, 36);
}

}  // namespace
}  // namespace bfio::testing::sglang
