// What only SGLang's protocol has: servers that choose ranks themselves, aborts by name, and no seeds.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SglangEngines : public EnginesOf<Sglang> {
 protected:
  using Call = CallOf<Sglang>;

  // One server with one rank in the router, to which requests name no rank.
  static Engine::Options ChoosesRanks(const HeldPort& port) {
    Engine::Options options = At(port, 2);
    options.chooses_ranks = true;
    options.slots = 6;
    options.kv_tokens = 50'000;
    return options;
  }
  static bool AwaitAbort(Engine& engine, const std::string& name) {
    const absl::Time deadline = MonotonicNow() + kSlowdown * absl::Seconds(20);
    while (!engine.aborted().contains(name) && MonotonicNow() < deadline)
      absl::SleepFor(absl::Milliseconds(5));
    return engine.aborted().contains(name);
  }
};

TEST_F(SglangEngines, RequestsOfBfioAreTranslated) {
  const HeldPort port;
  Engine::Options options = At(port, 2);
  options.slots = 6;
  options.kv_tokens = 50'000;
  Engine engine(options);
  Serve({port.address()}, 2);
  EXPECT_TRUE(cluster_->WaitFor("its sizes", [](const v1::ClusterState& state) {
    return state.workers_size() == 2 && state.workers(0).slots() == 6 &&
           state.workers(0).kv_tokens() == 50'000;
  }));
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
  cluster_->StopCleanly();
}

// The server's load is the sum over its ranks.
TEST_F(SglangEngines, AServerThatChoosesItsRanksItselfIsOneRank) {
  for (const bool attention : {false, true}) {
    const HeldPort port;
    Engine::Options options = ChoosesRanks(port);
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

TEST_F(SglangEngines, ARequestMovesWithItsCounts) {
  const HeldPort a, b;
  Engine one(At(a)), two(At(b));
  Serve({a.address(), b.address()}, 2);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::make_unique<Call>(gateway(), GreedyRequest<Sglang>(300)));
    ASSERT_TRUE(calls.back()->Read());
  }
  ASSERT_GT(one.counts().taken, 0);
  one.Kill();
  for (const auto& call : calls) {
    const OutputsOf<Sglang>& outputs = call->End();
    ASSERT_TRUE(outputs.status.ok()) << outputs.status.error_message();
    EXPECT_EQ(outputs.tokens.at(0), TokensAfter({1, 2, 3, 4, 5, 6, 7}, 300));
    EXPECT_EQ(outputs.ends.at(0).prompt_tokens(), 7u);
    EXPECT_EQ(outputs.ends.at(0).completion_tokens(), 300u);
  }
}

// The engine aborts every request whose name begins with the given one.
TEST_F(SglangEngines, AClientThatLeavesIsAbortedAndNoOtherRequest) {
  const HeldPort port;
  Engine::Options options = At(port);
  options.slots = 8;
  Engine engine(options);
  Serve({port.address()}, 1);
  Call leaves(gateway(), GreedyRequest<Sglang>(4'000));
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
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 5; ++i) {
    calls.push_back(std::make_unique<Call>(gateway(), request));
    ASSERT_TRUE(calls.back()->Read());
  }
  leaves.Cancel();
  EXPECT_TRUE(AwaitAbort(engine, name));
  EXPECT_THAT(engine.aborted(), ElementsAre(name));
  for (const auto& call : calls) {
    EXPECT_TRUE(call->End().status.ok()) << call->outputs().status.error_message();
    EXPECT_EQ(call->outputs().tokens.at(0).size(), 300u);
  }
}

}  // namespace
}  // namespace bfio::testing
