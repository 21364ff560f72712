// What only SGLang's protocol has: servers that choose ranks themselves, and no seeds.
#include <gmock/gmock.h>

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

}  // namespace
}  // namespace bfio::testing
