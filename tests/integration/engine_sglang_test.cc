// What only SGLang's protocol has: servers that choose ranks themselves, aborts by name, and no seeds.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;
using SglangEngines = EnginesOf<Sglang>;

TEST_F(SglangEngines, RequestsOfBfioAreTranslated) {
  const HeldPort port;
  Engine engine(At(port, 2));
  Serve({port.address()}, 2);
  EXPECT_EQ(Generate(stub(), Request({4, 5}, 5)).tokens, TokensAfter({4, 5}, 5));
  const Sglang::GenerateRequest sent = engine.exchanges().at(0).request;
  EXPECT_TRUE(sent.has_data_parallel_rank());
  EXPECT_TRUE(sent.stream());
  EXPECT_EQ(sent.sampling_params().top_k(), -1);
  EXPECT_EQ(sent.sampling_params().top_p(), 1);
  EXPECT_EQ(sent.sampling_params().repetition_penalty(), 1);
  v1::GenerateRequest seeded = Request({4, 5}, 5);
  seeded.mutable_sampling()->set_temperature(1);
  seeded.mutable_sampling()->set_seed(3);
  const GenerateResult refused = Generate(stub(), seeded);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("sampling.seed"));
}

// It has one rank in the router, to which requests name no rank; its load is the sum over its ranks.
TEST_F(SglangEngines, AServerThatChoosesItsRanksItselfIsOneRank) {
  for (const bool attention : {false, true}) {
    const HeldPort port;
    Engine::Options options = At(port, 2);
    options.chooses_ranks = true;
    options.slots = 6;
    options.kv_tokens = 50'000;
    options.attention_ranks = attention;
    Engine engine(options);
    Serve({port.address()}, 1, {}, "");
    EXPECT_TRUE(cluster_->WaitFor("its sizes", [](const v1::ClusterState& state) {
      return state.workers_size() == 1 && state.workers(0).slots() == 12 &&
             state.workers(0).kv_tokens() == 100'000;
    }));
    EXPECT_EQ(Generate(stub(), Request({4, 5}, 5)).tokens, TokensAfter({4, 5}, 5));
    engine.SetOthers(3, 50);
    EXPECT_TRUE(cluster_->WaitFor("its load", [](const v1::ClusterState& state) {
      return state.workers(0).engine_requests() == 6 && state.workers(0).engine_tokens() == 300;
    }));
  }
}

// The engine aborts every request whose name begins with the given one.
TEST_F(SglangEngines, AClientThatLeavesIsAbortedAndNoOtherRequest) {
  const HeldPort port;
  Engine::Options options = At(port);
  options.slots = 8;
  Engine engine(options);
  Serve({port.address()}, 1);
  CallOf<Sglang> leaves(gateway(), GreedyRequest<Sglang>(4'000));
  ASSERT_TRUE(leaves.Read());
  const std::string name = engine.exchanges().at(0).request.request_id();
  const std::string number = name.substr(0, name.find_last_not_of('-') + 1);
  // Makes calls until a call's number begins with the earlier call's number.
  do {
    ASSERT_TRUE(GenerateAs<Sglang>(gateway(), GreedyRequest<Sglang>(1)).status.ok());
  } while (!engine.exchanges().back().request.request_id().starts_with(number));
  // Sampled, so that another engine could not continue it.
  Sglang::GenerateRequest request = GreedyRequest<Sglang>(300);
  request.mutable_sampling_params()->set_temperature(1);
  std::vector<std::unique_ptr<CallOf<Sglang>>> calls;
  for (int i = 0; i < 5; ++i) {
    calls.push_back(std::make_unique<CallOf<Sglang>>(gateway(), request));
    ASSERT_TRUE(calls.back()->Read());
  }
  leaves.Cancel();
  EXPECT_TRUE(Eventually([&] { return engine.counts().running <= 5; }));
  for (const auto& call : calls) {
    EXPECT_TRUE(call->End().status.ok()) << call->outputs().status.error_message();
    EXPECT_EQ(call->outputs().tokens.at(0).size(), 300u);
  }
}

}  // namespace
}  // namespace bfio::testing
