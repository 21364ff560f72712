// Prompts computed by one server and handed over to another (disaggregated prefill), in vLLM's form.
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class DisaggregationTest : public EnginesTest {
 protected:
  ScriptedEngine::Options Role(const HeldPort& port, const std::string& role, int32_t ranks = 1) const {
    ScriptedEngine::Options options = At(port, ranks);
    options.kv_role = role;
    options.kv = kv_;
    return options;
  }
  // The first address is that of `prefill` ranks; they attach after one that decodes.
  void ServeBoth(const std::vector<std::string>& addresses, int decode, size_t prefill = 1,
                 const std::string& settings = "") {
    Serve(addresses, decode, {}, settings);
    const size_t all = static_cast<size_t>(decode) + prefill;
    EXPECT_TRUE(cluster_->WaitFor("the prefill server",
                                  [&](const v1::ClusterState& state) { return Serving(state) == all; }));
  }
  // Sends `count` requests and expects the tokens of an undisturbed engine.
  void ExpectRightTokens(
      int count, const std::function<void()>& meanwhile = [] {}) {
    std::vector<std::unique_ptr<RequestStream>> streams;
    const auto prompt = [](int i) {
      return Tokens(5 + static_cast<size_t>(i) % 7, 2'000 + static_cast<uint32_t>(i));
    };
    for (int i = 0; i < count; ++i)
      streams.push_back(std::make_unique<RequestStream>(stub(), Request(prompt(i), 20 + i % 20)));
    meanwhile();
    for (int i = 0; i < count; ++i) {
      const GenerateResult& result = streams[i]->End();
      EXPECT_TRUE(result.status.ok()) << i << ": " << result.status.error_message();
      EXPECT_EQ(result.tokens, TokensAfter(prompt(i), 20 + i % 20)) << i;
    }
    EXPECT_EQ(kv_->count(&HandedOverKv::wrong), 0) << "a hand-off was used twice, or late";
    EXPECT_EQ(kv_->count(&HandedOverKv::fatal), 0);
  }
  int made() const { return kv_->count(&HandedOverKv::made); }

  const std::shared_ptr<HandedOverKv> kv_ = std::make_shared<HandedOverKv>();
};

// The decode ranks are in a barrier. Each prompt is computed once, for one token, on a rank that computes
// nothing else; its KV is fetched once; and no more prompts are under way than the decode ranks have slots.
TEST_F(DisaggregationTest, EachPromptIsComputedThereAndDecodedHere) {
  const HeldPort p, a, b;
  ScriptedEngine::Options prefill = Role(p, "kv_producer", 2);
  prefill.slots = 64;
  ScriptedEngine producer(prefill), one(Role(a, "kv_consumer", 2)), two(Role(b, "kv_consumer"));
  ServeBoth({p.address(), a.address(), b.address()}, 3, 2, ", barrier: decode");
  ExpectRightTokens(60);
  EXPECT_EQ(made(), 60);
  EXPECT_EQ(kv_->used, 60);
  for (const ScriptedEngine::Exchange& exchange : producer.exchanges()) {
    EXPECT_EQ(exchange.request.sampling_params().max_tokens(), 1);
    EXPECT_THAT(exchange.request.kv_transfer_params_json(), HasSubstr(R"("do_remote_decode":true)"));
  }
  EXPECT_THAT(producer.counts().by_rank, Each(::testing::Gt(0)));
  EXPECT_EQ(one.counts().taken + two.counts().taken, 60);
  cluster_->StopCleanly();
}

// Its KV would be of no use to the others.
TEST_F(DisaggregationTest, AServerThatCannotPairIsRefusedByName) {
  const HeldPort p, a, b;
  ScriptedEngine producer(Role(p, "kv_producer")), consumer(Role(a, "kv_consumer"));
  ServeBoth({p.address(), a.address(), b.address()}, 1);
  ScriptedEngine other(Role(b, ""));
  const std::string why = absl::StrCat("engine vllm://", b.address(),
                                       " cannot be used, retrying: it has no KV connector and vllm://");
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(cluster_->router().Stderr(), why); }));
  ExpectRightTokens(20);
  EXPECT_EQ(other.counts().taken, 0);
}

// A client's hand-off might be used twice, or name none.
TEST_F(DisaggregationTest, ClientsHandNothingOver) {
  const HeldPort p, a;
  ScriptedEngine producer(Role(p, "kv_producer")), consumer(Role(a, "kv_consumer"));
  ServeBoth({p.address(), a.address()}, 1);
  for (const char* const own :
       {R"({"do_remote_prefill": true, "remote_request_id": "r"})", R"({"do_remote_prefill": true})"}) {
    pb::GenerateRequest request = FromGateway(Tokens(5, 2'000), 10);
    request.set_kv_transfer_params_json(own);
    grpc::ClientContext context;
    pb::GenerateResponse response;
    const auto stream = gateway().Generate(&context, request);
    EXPECT_FALSE(stream->Read(&response));
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("kv_transfer_params"));
  }
  ExpectRightTokens(1);
}

TEST_F(DisaggregationTest, WithoutAPrefillServerTheDecodeServersComputePrompts) {
  const HeldPort p, a;
  auto producer = std::make_unique<ScriptedEngine>(Role(p, "kv_producer"));
  ScriptedEngine consumer(Role(a, "kv_consumer"));
  ServeBoth({p.address(), a.address()}, 1);
  ExpectRightTokens(40, [&] {
    EXPECT_TRUE(Eventually([&] { return made() >= 5; }));
    producer->Kill();
  });
  EXPECT_LT(made(), 40);
  const auto serving = [](size_t ranks) {
    return [ranks](const v1::ClusterState& state) { return Serving(state) == ranks; };
  };
  EXPECT_TRUE(cluster_->WaitFor("the loss of the prefill server", serving(1)));
  // It is used again when it is back.
  producer = std::make_unique<ScriptedEngine>(Role(p, "kv_producer"));
  EXPECT_TRUE(cluster_->WaitFor("the prefill server", serving(2)));
  const int before = made();
  ExpectRightTokens(20);
  EXPECT_GT(made(), before);
}

TEST_F(DisaggregationTest, ADecodeServersDeathCostsNoTokenAndReusesNoHandOff) {
  const HeldPort p, a, b;
  ScriptedEngine producer(Role(p, "kv_producer")), one(Role(a, "kv_consumer"));
  auto two = std::make_unique<ScriptedEngine>(Role(b, "kv_consumer"));
  ServeBoth({p.address(), a.address(), b.address()}, 2);
  ExpectRightTokens(40, [&] {
    EXPECT_TRUE(Eventually([&] { return two->counts().taken >= 5; }));
    two->Kill();
  });
}

}  // namespace
}  // namespace bfio::testing
