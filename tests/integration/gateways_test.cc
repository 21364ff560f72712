// A router and workers that act as an engine, for correct and for faulty gateways of each protocol, and the
// tokenizer that gateways fetch from it. The tests of a suite share a cluster.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/cluster.h"
#include "tests/testing/gateway_calls.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {
namespace {

using ::testing::SizeIs;

template <typename P>
class GatewayApi : public ::testing::Test {
 protected:
  static void Start(int workers, std::vector<std::string> worker_flags,
                    std::vector<std::string> router_flags) {
    router_flags.push_back(absl::StrCat("--client_apis=bfio,", P::kName));
    cluster_ = std::make_unique<Cluster>(ClusterOptions{.worker_processes = workers,
                                                        .router_flags = std::move(router_flags),
                                                        .worker_flags = std::move(worker_flags)});
  }
  static void SetUpTestSuite() {
    Start(2, {"--c=0.0005", "--tl=0", "--slots=16", "--max_sequence_tokens=100000"},
          {"--tokenizer=" + NumbersTokenizer(), "--max_waiting=8"});
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override {
    ASSERT_TRUE(cluster_->ok());
    channel_ = grpc::CreateChannel(cluster_->address(), grpc::InsecureChannelCredentials());
    stub_ = P::Service::NewStub(channel_);
  }
  OutputsOf<P> Generate(const typename P::GenerateRequest& request) { return GenerateAs<P>(*stub_, request); }
  static inline std::unique_ptr<Cluster> cluster_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<typename P::Service::Stub> stub_;
};

// Tokens that a model computes, so that equal requests have equal outputs.
template <typename P>
class ComputedGatewayApi : public GatewayApi<P> {
 protected:
  static void SetUpTestSuite() {
    GatewayApi<P>::Start(
        2, {"--engine=cpu", "--model=tests/golden/qwen3", "--slots=4", "--kv_tokens=4096", "--cpu_threads=1"},
        {"--tokenizer=" + NumbersTokenizer()});
  }
  // The same through bfio.v1.
  Tokens Expected(uint32_t output) {
    v1::GenerateRequest own;
    for (uint32_t id = 1; id <= 7; ++id) own.mutable_token_ids()->add_ids(id);
    own.set_max_new_tokens(output);
    own.set_ignore_eos(true);
    const GenerateResult result = testing::Generate(this->cluster_->inference(), own);
    EXPECT_THAT(result.tokens, SizeIs(output));
    return result.tokens;
  }
};

// Three ranks of two slots, with steps slow enough to act between them.
template <typename P>
class SlowGatewayApi : public GatewayApi<P> {
 protected:
  static void SetUpTestSuite() {
    GatewayApi<P>::Start(3, {"--c=0.02", "--tl=0", "--slots=2", "--kv_tokens=100000"}, {"--max_waiting=100"});
  }
};

TYPED_TEST_SUITE(GatewayApi, EngineProtocols, ProtocolNames);
TYPED_TEST_SUITE(ComputedGatewayApi, EngineProtocols, ProtocolNames);
TYPED_TEST_SUITE(SlowGatewayApi, EngineProtocols, ProtocolNames);

// --- a correct gateway ---

TYPED_TEST(ComputedGatewayApi, BothApisGiveTheSameTokens) {
  const Tokens expected = this->Expected(40);
  for (const bool stream : {true, false}) {
    for (const uint32_t outputs : {1, 2}) {
      auto request = GreedyRequest<TypeParam>(40, stream);
      request.mutable_sampling_params()->set_n(outputs);
      const auto got = this->Generate(request);
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

TYPED_TEST(ComputedGatewayApi, StopTokensAndTextsEndOutputsAndAreNamed) {
  const Tokens all = this->Expected(20);
  size_t at = 3;
  while (std::find(all.begin(), all.begin() + at, all[at]) != all.begin() + at) ++at;
  const Tokens until(all.begin(), all.begin() + at + 1);
  auto request = GreedyRequest<TypeParam>(20);
  request.mutable_sampling_params()->add_stop_token_ids(all[at]);
  const auto by_token = this->Generate(request);
  EXPECT_EQ(by_token.tokens.at(0), until);
  EXPECT_EQ(by_token.reason(), "stop");
  EXPECT_EQ(by_token.ends.at(0).matched_token_id(), all[at]);
  for (const bool stream : {true, false}) {
    request = GreedyRequest<TypeParam>(20, stream);
    // A stop text from the middle of one token to the middle of the next.
    const std::string text = absl::StrCat("><", all[at], ">");
    request.mutable_sampling_params()->add_stop("never");
    request.mutable_sampling_params()->add_stop(text);
    const auto by_text = this->Generate(request);
    EXPECT_EQ(by_text.tokens.at(0), until);
    EXPECT_EQ(by_text.reason(), "stop");
    EXPECT_EQ(by_text.ends.at(0).matched_stop_str(), text);
    EXPECT_EQ(by_text.ends.at(0).completion_tokens(), at + 1);
  }
  EXPECT_TRUE(this->cluster_->WaitUntilIdle()) << "the workers have stopped, too";
}

TYPED_TEST(GatewayApi, TheRouterIsOneEngine) {
  grpc::ClientContext c1, c2, c3, c4, c5;
  typename TypeParam::HealthCheckResponse health;
  ASSERT_TRUE(this->stub_->HealthCheck(&c1, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  typename TypeParam::GetModelInfoResponse model;
  ASSERT_TRUE(this->stub_->GetModelInfo(&c2, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "numbers");
  EXPECT_EQ(this->cluster_->State().served_model_name(), "numbers")
      << "the label of vllm:num_requests_waiting";
  typename TypeParam::GetServerInfoResponse server;
  ASSERT_TRUE(this->stub_->GetServerInfo(&c3, {}, &server).ok());
  EXPECT_EQ(TypeParam::Ranks(server), 1);
  EXPECT_EQ(TypeParam::Slots(server), 32) << "of two workers";
  typename TypeParam::GetLoadsResponse loads;
  ASSERT_TRUE(this->stub_->GetLoads(&c4, {}, &loads).ok());
  ASSERT_THAT(loads.loads(), SizeIs(1));
  EXPECT_EQ(loads.loads(0).max_running_requests(), 32);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(TypeParam::kService);
  grpc::health::v1::HealthCheckResponse status;
  ASSERT_TRUE(grpc::health::v1::Health::NewStub(this->channel_)->Check(&c5, request, &status).ok());
  EXPECT_EQ(status.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  using Other = std::conditional_t<std::is_same_v<TypeParam, Vllm>, Sglang, Vllm>;
  EXPECT_EQ(
      RawCall(this->channel_, absl::StrCat("/", Other::kService, "/HealthCheck"), "").second.error_code(),
      grpc::StatusCode::UNIMPLEMENTED)
      << "a gateway that probes finds one engine";
}

TYPED_TEST(GatewayApi, RecordedSessionsOfSmgGetTheirAnswers) {
  int calls = 0;
  for (const char* session : {"start", "chat", "refused"}) {
    const char* const prefix = std::is_same_v<TypeParam, Sglang> ? "sglang_" : "";
    calls += ReplaySession<TypeParam>(this->channel_, absl::StrCat(prefix, session));
  }
  EXPECT_GE(calls, 24);
}

TYPED_TEST(SlowGatewayApi, AnAbortEndsEveryOutputWithWhatItHas) {
  auto request = GreedyRequest<TypeParam>(2000);
  request.set_request_id("victim");
  request.mutable_sampling_params()->set_n(2);
  CallOf<TypeParam> call(*this->stub_, request);
  while (call.outputs().tokens.size() < 2) ASSERT_TRUE(call.Read());
  for (const char* id : {"nobody", "victim"}) {
    typename TypeParam::AbortResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(this->stub_->Abort(&context, TypeParam::AbortOf(id), &response).ok());
    if constexpr (requires { response.success(); }) {
      EXPECT_EQ(response.success(), id == std::string("victim"));
    }
  }
  const auto& outputs = call.End();
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  for (const uint32_t index : {0u, 1u}) {
    EXPECT_EQ(outputs.reason(index), "abort");
    EXPECT_EQ(outputs.ends.at(index).completion_tokens(), outputs.tokens.at(index).size());
  }
  EXPECT_TRUE(this->cluster_->WaitUntilIdle());
}

// --- a faulty gateway ---

TYPED_TEST(GatewayApi, GarbageIsRefusedAndOtherCallsContinue) {
  CallOf<TypeParam> bystander(*this->stub_, GreedyRequest<TypeParam>(400));
  const std::string large(400'000, '\xff');
  for (const char* method : {"Generate", "Abort", "HealthCheck", "GetModelInfo", "GetServerInfo", "GetLoads",
                             "GetTokenizer", "SubscribeKvEvents"}) {
    for (const std::string& bytes : {std::string("\xff"), std::string("\x0a\x7f"), large}) {
      const auto [messages, status] =
          RawCall(this->channel_, absl::StrCat("/", TypeParam::kService, "/", method), bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
      EXPECT_THAT(messages, SizeIs(0));
    }
  }
  EXPECT_EQ(RawCall(this->channel_, absl::StrCat("/", TypeParam::kService, "/Embed"), "").second.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(bystander.End().status.ok());
  EXPECT_THAT(bystander.outputs().tokens.at(0), SizeIs(400));
}

TYPED_TEST(SlowGatewayApi, CancelledLateAndUnreadStreamsLeaveNothingBehind) {
  std::vector<std::unique_ptr<CallOf<TypeParam>>> calls;
  for (int i = 0; i < 8; ++i) {
    auto request = GreedyRequest<TypeParam>(3000, /*stream=*/i % 4 != 0);
    request.mutable_sampling_params()->set_n(1 + i % 3);
    const absl::Duration deadline = i == 1 ? kSlowdown * absl::Seconds(1) : absl::InfiniteDuration();
    calls.push_back(std::make_unique<CallOf<TypeParam>>(*this->stub_, request, deadline));
    if (i % 2 == 0) calls.back()->Cancel();
  }
  EXPECT_EQ(calls[1]->End().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  calls.clear();  // cancels the other calls, which have not been read
  EXPECT_TRUE(this->cluster_->WaitUntilIdle());
  // Without a limit the tokens are all that fit.
  auto unlimited = GreedyRequest<TypeParam>(1);
  TypeParam::ClearMaxTokens(*unlimited.mutable_sampling_params());
  CallOf<TypeParam> call(*this->stub_, unlimited);
  EXPECT_TRUE(call.Read());
}

}  // namespace
}  // namespace bfio::testing
