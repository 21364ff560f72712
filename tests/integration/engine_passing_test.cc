// Requests of gateways that pass through a router to engines unchanged.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename P>
class EnginePassing : public EnginesOf<P> {};
TYPED_TEST_SUITE(EnginePassing, EngineProtocols, ProtocolNames);
using VllmPassing = EnginesTest;

// Every byte of request and response is passed on, in known and unknown fields, except what the router sets.
TYPED_TEST(EnginePassing, AGatewaysRequestPassesAsItCame) {
  const HeldPort port;
  typename TestFixture::Engine engine(this->At(port, 2));
  this->Serve({port.address()}, 2);
  auto request = FromGatewayOf<TypeParam>({9, 8, 7}, 12);
  request.set_request_id("chatcmpl-1");
  auto& sampling = *request.mutable_sampling_params();
  TypeParam::RequestLogprobs(request, 2);
  TypeParam::SetMinTokens(sampling, 3);
  sampling.set_min_p(0.25);
  sampling.set_frequency_penalty(0.5);
  sampling.set_regex("a*");
  sampling.add_stop("never");
  if constexpr (requires { sampling.set_prompt_logprobs(1); }) {
    sampling.set_prompt_logprobs(1);
    (*sampling.mutable_logit_bias())[5] = 1;
  } else {
    sampling.mutable_custom_params();
    request.set_lora_id("adapter");
    request.set_return_hidden_states(true);
  }
  sampling.GetReflection()->MutableUnknownFields(&sampling)->AddLengthDelimited(77, "unknown");
  request.mutable_mm_inputs()
      ->GetReflection()
      ->MutableUnknownFields(request.mutable_mm_inputs())
      ->AddVarint(1, 2);
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(99, "lora");
  for (const bool stream : {true, false}) {
    SCOPED_TRACE(stream);
    request.set_stream(stream);
    // One is used once.
    if constexpr (requires { request.kv_transfer_params_json(); })
      request.set_kv_transfer_params_json(
          absl::StrCat(R"({"do_remote_prefill": true, "transfer_id": "r)", stream, R"("})"));
    grpc::ClientContext context;
    const auto reader = this->gateway().Generate(&context, request);
    std::vector<std::string> got, sent;
    typename TypeParam::GenerateResponse response;
    while (reader->Read(&response)) got.push_back(response.SerializeAsString());
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    const typename TestFixture::Engine::Exchange exchange = engine.exchanges().back();
    for (typename TypeParam::GenerateResponse one : exchange.responses) {
      if constexpr (requires { one.request_id(); }) one.set_request_id("chatcmpl-1");
      sent.push_back(one.SerializeAsString());
    }
    if (stream) {
      EXPECT_EQ(got, sent);
      EXPECT_EQ(got.size(), 13u);
    } else {
      ASSERT_EQ(got.size(), 1u);
      ASSERT_TRUE(response.ParseFromString(got[0]));
      const auto& whole = response.complete();
      EXPECT_EQ(Tokens(whole.output_ids().begin(), whole.output_ids().end()), TokensAfter({9, 8, 7}, 12));
      EXPECT_EQ(whole.completion_tokens(), 12u);
      EXPECT_EQ(whole.output_logprobs().token_ids_size(), 12);
      EXPECT_EQ(whole.finish_reason(), "length");
      EXPECT_FALSE(whole.GetReflection()->GetUnknownFields(whole).empty());
    }
    auto expected = request;
    expected.set_stream(true);
    expected.set_request_id(exchange.request.request_id());
    expected.set_data_parallel_rank(exchange.request.data_parallel_rank());
    EXPECT_EQ(exchange.request.SerializeAsString(), expected.SerializeAsString());
    EXPECT_THAT(exchange.request.request_id(), StartsWith("bfio-"));
  }
  this->cluster_->StopCleanly();
}

TEST_F(VllmPassing, RequestsMoveOnlyIfTheirTokensStayCorrect) {
  const HeldPort a, b;
  ScriptedEngine::Options options = At(a);
  options.slots = 8;
  ScriptedEngine one(options);
  options.listen = b.address();
  ScriptedEngine two(options);
  Serve({a.address(), b.address()}, 2);
  const Tokens prompt(6, 4'000);
  // min_tokens distinguishes the kinds of requests in the engines.
  const auto make = [&](uint32_t kind, auto change) {
    pb::GenerateRequest request = FromGateway(prompt, 400);
    request.mutable_sampling_params()->set_min_tokens(kind);
    change(request, *request.mutable_sampling_params());
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 3; ++i) calls.push_back(std::make_unique<Call>(gateway(), request));
    for (const auto& call : calls) EXPECT_TRUE(!request.stream() || call->Read());
    return calls;
  };
  const auto greedy = make(300, [](auto&, auto&) {});
  const auto penalty = make(301, [](auto&, auto& sampling) { sampling.set_presence_penalty(1); });
  const auto seeded =
      make(302, [](auto&, auto& sampling) { sampling.set_temperature(1), sampling.set_seed(1); });
  // It cannot continue, but start again.
  const auto whole = make(303, [](auto& request, auto& sampling) {
    request.set_stream(false), sampling.set_presence_penalty(1);
  });
  ASSERT_TRUE(Eventually([&] { return one.counts().running + two.counts().running == 12; }));
  one.Kill();
  std::map<uint32_t, int> lost;
  for (const ScriptedEngine::Exchange& exchange : one.exchanges())
    ++lost[exchange.request.sampling_params().min_tokens()];
  EXPECT_GT(lost[300], 0);
  EXPECT_GT(lost[301] + lost[302], 0);
  EXPECT_GT(lost[303], 0);
  for (const auto* calls : {&greedy, &whole}) {
    for (const auto& call : *calls) {
      const Outputs& outputs = call->End();
      EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
      EXPECT_EQ(outputs.tokens.at(0), TokensAfter(prompt, 400));
      EXPECT_EQ(outputs.ends.at(0).prompt_tokens(), 6u);
      // vLLM counts only the last chunk's tokens if there are chunks.
      EXPECT_EQ(outputs.ends.at(0).completion_tokens(), calls == &whole ? 400u : 1u);
    }
  }
  int ended = 0;
  for (const auto* calls : {&penalty, &seeded}) {
    for (const auto& call : *calls) {
      if (call->End().status.ok()) continue;
      ++ended;
      EXPECT_EQ(call->outputs().status.error_code(), grpc::StatusCode::UNAVAILABLE);
      EXPECT_THAT(call->outputs().status.error_message(), HasSubstr("another engine cannot continue"));
    }
  }
  EXPECT_EQ(ended, lost[301] + lost[302]);
  int moved = 0;
  for (const ScriptedEngine::Exchange& exchange : two.exchanges()) {
    const int made = exchange.request.tokenized().input_ids_size() - 6;
    if (made == 0) continue;
    ++moved;
    EXPECT_EQ(exchange.request.sampling_params().min_tokens(), 300 - std::min(made, 300));
    EXPECT_EQ(exchange.request.sampling_params().max_tokens(), 400 - made);
  }
  EXPECT_EQ(moved, lost[300]);
}

TYPED_TEST(EnginePassing, RequestsThatAllowResamplingMove) {
  const HeldPort a, b;
  typename TestFixture::Engine one(this->At(a)), two(this->At(b));
  this->Serve({a.address(), b.address()}, 2);
  auto request = FromGatewayOf<TypeParam>(Tokens(6, 4'000), 300);
  request.mutable_sampling_params()->set_temperature(1);
  request.mutable_sampling_params()->set_presence_penalty(1);
  if constexpr (std::is_same_v<TypeParam, Vllm>) request.mutable_sampling_params()->set_seed(7);
  const auto call = [&](const std::string& value) {
    return std::make_unique<CallOf<TypeParam>>(
        this->gateway(), request, absl::InfiniteDuration(),
        std::map<std::string, std::string>{{"bfio-may-resample", value}});
  };
  EXPECT_EQ(call("yes")->End().status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::vector<std::unique_ptr<CallOf<TypeParam>>> calls;
  for (int i = 0; i < 6; ++i) {
    calls.push_back(call("true"));
    ASSERT_TRUE(calls.back()->Read());
  }
  ASSERT_GT(one.counts().taken, 0);
  one.Kill();
  for (const auto& moved : calls) {
    EXPECT_TRUE(moved->End().status.ok()) << moved->outputs().status.error_message();
    EXPECT_EQ(moved->outputs().tokens.at(0), TokensAfter(Tokens(6, 4'000), 300));
  }
  // A request that no other engine can continue ends immediately, even if there is no other engine.
  request.mutable_sampling_params()->set_regex("a*");
  const std::unique_ptr<CallOf<TypeParam>> constrained = call("true");
  ASSERT_TRUE(constrained->Read());
  two.Kill();
  EXPECT_EQ(constrained->End().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace bfio::testing
