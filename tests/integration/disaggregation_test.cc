// Prompts computed by one server and handed over to another (disaggregated prefill), in the forms of vLLM and
// SGLang.
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
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
                 const std::string& settings = "", const std::string& hand_over = "all",
                 std::vector<std::string> flags = {}) {
    flags.push_back("--hand_over=" + hand_over);
    Serve(addresses, decode, std::move(flags), settings);
    const size_t all = static_cast<size_t>(decode) + prefill;
    EXPECT_TRUE(cluster_->WaitFor("the prefill server",
                                  [&](const v1::ClusterState& state) { return Serving(state) == all; }));
  }
  void ExpectRightTokens(
      int count, const std::function<void()>& meanwhile = [] {}) {
    EnginesTest::ExpectRightTokens(count, meanwhile);
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

// One alone delays nobody where it decodes. While others decode there, a long one does.
TEST_F(DisaggregationTest, APromptThatTheDecodeRankComputesSoonerStaysThere) {
  const HeldPort p, a;
  ScriptedEngine producer(Role(p, "kv_producer")), consumer(Role(a, "kv_consumer"));
  ServeBoth({p.address(), a.address()}, 1, 1, "", "by_cost");
  ExpectRightTokens(1);
  EXPECT_EQ(made(), 0);
  // It decodes until the end of the test.
  RequestStream decodes(stub(), Request(Tokens(900, 2'000), 3'000));
  EXPECT_TRUE(Eventually([&] { return consumer.counts().taken == 2; }));
  for (int i = 1; i < 3; ++i) {
    RequestStream other(stub(), Request(Tokens(900, 2'000 + static_cast<uint32_t>(i)), 5));
    EXPECT_TRUE(other.End().status.ok());
    EXPECT_EQ(made(), i);
  }
  EXPECT_TRUE(cluster_->WaitFor("the counts", [](const v1::ClusterState& state) {
    return state.requests().not_handed_over() == 2 && state.requests().handed_over() == 2 &&
           state.has_hand_offs() && state.hand_offs().promised_slots() == 0;
  }));
}

// The router names the transfer, and the rank that computes; the configuration says where to ask for it.
TEST_F(DisaggregationTest, MooncakesTransfersAreNamedByTheRouter) {
  const HeldPort p, a;
  ScriptedEngine::Options prefill = Role(p, "kv_producer", 2), decode = Role(a, "kv_consumer", 2);
  prefill.kv_engine_id = "engine-p";
  prefill.kv_connector = decode.kv_connector = "MooncakeConnector";
  ScriptedEngine producer(prefill), consumer(decode);
  ServeBoth({p.address(), a.address()}, 2, 2, ", kv_bootstrap: \"bootstrap:1\"");
  ExpectRightTokens(40);
  EXPECT_EQ(made(), 40);
  EXPECT_EQ(kv_->used, 40);
  EXPECT_THAT(producer.counts().by_rank, Each(::testing::Gt(0)));
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

// vLLM would hang, end, or fetch from anywhere. Each wrong one costs a prompt on the other server.
TEST_F(DisaggregationTest, AHandOffThatCannotBeRightIsThatServersFault) {
  const HeldPort p, q, a;
  ScriptedEngine::Options wrong = Role(p, "kv_producer");
  // Its address differs from its earlier ones.
  wrong.spoils = R"({"remote_host": "elsewhere"})";
  ScriptedEngine::Options right = Role(q, "kv_producer");
  right.slots = 64;
  ScriptedEngine one(wrong), other(right), consumer(Role(a, "kv_consumer"));
  ServeBoth({p.address(), q.address(), a.address()}, 1, 2);
  ExpectRightTokens(40);
  EXPECT_GT(one.counts().taken, 4);
  EXPECT_GT(other.counts().taken, 20) << "it gets what the other one may not compute";
  std::set<std::string> sources;
  for (const auto& exchange : consumer.exchanges()) {
    const std::string& sent = exchange.request.kv_transfer_params_json();
    if (!sent.empty()) sources.insert(nlohmann::json::parse(sent).value("remote_host", ""));
  }
  EXPECT_THAT(sources, ElementsAre("localhost"));
  EXPECT_THAT(
      cluster_->router().Stderr(),
      HasSubstr(absl::StrCat("engine vllm://", p.address(), ": its hand-off of a prompt cannot be right")));
  EXPECT_TRUE(cluster_->WaitFor(
      "the counts", [](const v1::ClusterState& state) { return state.requests().hand_offs_failed() > 0; }));
}

// It calls the prefill server itself.
TEST_F(DisaggregationTest, ATrustedGatewayHandsOverEachOnce) {
  const HeldPort p, a, link;
  ScriptedEngine::Options prefill = Role(p, "kv_producer");
  prefill.kv_engine_id = "engine-p";
  ScriptedEngine producer(prefill), consumer(Role(a, "kv_consumer"));
  const std::string tokens = WriteFile("tokens",
                                       "smg token:trusted-trusted-trusted role=gateway trust_kv_transfer\n"
                                       "acme token:tenant-tenant-tenant\n");
  ServeBoth({p.address(), a.address()}, 1, 1, "", "all",
            {"--client_tokens=" + tokens, "--worker_listen=" + link.address()});
  const auto call = [&](const std::string& token, const std::string& engine, const std::string& transfer) {
    pb::GenerateRequest request = FromGateway(Tokens(5, 2'000), 10);
    auto fields = nlohmann::json::parse(transfer);
    fields["remote_engine_id"] = engine;
    request.set_kv_transfer_params_json(fields.dump());
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    pb::GenerateResponse response;
    const auto stream = gateway().Generate(&context, request);
    while (stream->Read(&response)) continue;
    return stream->Finish();
  };
  const std::string made = kv_->Make(&producer, Tokens(5, 2'000));
  for (const auto& [token, engine, why] :
       {std::tuple("tenant-tenant-tenant", "engine-p", "does not have trust_kv_transfer"),
        std::tuple("trusted-trusted-trusted", "engine-x", "of no prefill server"),
        std::tuple("trusted-trusted-trusted", "engine-p", ""),
        std::tuple("trusted-trusted-trusted", "engine-p", "used by an earlier request")}) {
    const grpc::Status status = call(token, engine, made);
    EXPECT_EQ(status.error_code(), *why == 0 ? grpc::StatusCode::OK : grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  }
  EXPECT_EQ(kv_->used, 1);
  EXPECT_EQ(kv_->wrong, 0);
  EXPECT_EQ(producer.counts().taken, 0);
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

// --- SGLang: a server computes a prompt while another one waits for it in a room ---

class RoomsTest : public EnginesOf<Sglang> {
 protected:
  Engine::Options Role(const HeldPort& port, const std::string& role, int32_t ranks = 1) const {
    Engine::Options options = At(port, ranks);
    options.kv_role = role;
    options.rooms = rooms_;
    options.bootstrap_port = 9'000;
    options.slots = 8;
    return options;
  }
  // `all`: ranks, of which `decode` decode.
  void ServeBoth(const std::vector<std::string>& addresses, int decode, size_t all,
                 std::vector<std::string> flags = {}) {
    Serve(addresses, decode, std::move(flags));
    EXPECT_TRUE(
        cluster_->WaitFor("all ranks", [&](const v1::ClusterState& state) { return Serving(state) == all; }));
  }
  void ExpectRightTokens(
      int count, const std::function<void()>& meanwhile = [] {}) {
    EnginesOf::ExpectRightTokens(count, meanwhile, /*one=*/true);
    EXPECT_EQ(rooms_->wrong, 0);
  }
  // No call waits for one that is gone.
  static bool Empty(Engine& engine) {
    return Eventually([&] { return engine.counts().running + engine.counts().waiting == 0; });
  }

  const std::shared_ptr<MeetingRooms> rooms_ = std::make_shared<MeetingRooms>();
};

TEST_F(RoomsTest, EachPromptIsComputedInARoomWhereItsDecodeRankWaits) {
  const HeldPort p, a, b;
  Engine producer(Role(p, "prefill", 2)), one(Role(a, "decode")), two(Role(b, "decode", 2));
  ServeBoth({p.address(), a.address(), b.address()}, 3, 5);
  ExpectRightTokens(60);
  EXPECT_EQ(rooms_->used, 60);
  EXPECT_THAT(producer.counts().by_rank, Each(::testing::Gt(0)));
  EXPECT_EQ(producer.exchanges().at(0).request.disaggregated_params().bootstrap_port(), 9'000);
  EXPECT_EQ(producer.exchanges().at(0).request.disaggregated_params().bootstrap_host(), "127.0.0.1");
  EXPECT_TRUE(Empty(producer) && Empty(one) && Empty(two));
  EXPECT_TRUE(cluster_->WaitFor("the counts", [](const v1::ClusterState& state) {
    return state.requests().handed_over() == 60 && state.hand_offs().promised_slots() == 0;
  }));
  cluster_->StopCleanly();
}

TEST_F(RoomsTest, APrefillServersDeathCostsAPromptElsewhereAndLeavesNoRankWaiting) {
  const HeldPort p, q, a;
  auto lost = std::make_unique<Engine>(Role(p, "prefill"));
  Engine other(Role(q, "prefill")), consumer(Role(a, "decode"));
  ServeBoth({p.address(), q.address(), a.address()}, 1, 3);
  ExpectRightTokens(60, [&] {
    EXPECT_TRUE(Eventually([&] { return lost->counts().taken >= 5; }));
    lost->Kill();
  });
  EXPECT_TRUE(Empty(other) && Empty(consumer));
}

// What had tokens continues after them: its prompt and they are computed again, as decode ranks compute
// nothing.
TEST_F(RoomsTest, ADecodeServersDeathCostsNoTokenAndLeavesNoPromptWaiting) {
  const HeldPort p, a, b;
  Engine producer(Role(p, "prefill")), one(Role(a, "decode"));
  auto two = std::make_unique<Engine>(Role(b, "decode"));
  ServeBoth({p.address(), a.address(), b.address()}, 2, 3);
  ExpectRightTokens(40, [&] {
    EXPECT_TRUE(Eventually([&] { return two->counts().taken >= 5; }));
    two->Kill();
  });
  EXPECT_TRUE(Empty(producer) && Empty(one));
}

TEST_F(RoomsTest, WhoeverLeavesTakesBothCallsAlong) {
  const HeldPort p, a;
  Engine::Options holds = Role(p, "prefill");
  holds.holds = true;
  Engine producer(holds), consumer(Role(a, "decode"));
  ServeBoth({p.address(), a.address()}, 1, 2);
  const auto both = [&] { return producer.counts().waiting == 1 && consumer.counts().running == 1; };
  RequestStream leaves(stub(), Request({5, 6}, 10));
  EXPECT_TRUE(Eventually(both));
  leaves.Cancel();
  EXPECT_TRUE(Empty(producer) && Empty(consumer));
  const GenerateResult late = Generate(stub(), Request({5, 6}, 10), absl::Seconds(1));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Empty(producer) && Empty(consumer));
}

TEST_F(RoomsTest, WhatTheRequestIsToBlameForEndsIt) {
  const HeldPort p, a;
  Engine producer(Role(p, "prefill")), consumer(Role(a, "decode"));
  ServeBoth({p.address(), a.address()}, 1, 2);
  const GenerateResult refused = Generate(stub(), Request({kBadRequest, 6}, 10));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << refused.status.error_message();
  EXPECT_TRUE(Empty(producer) && Empty(consumer));
}

// Nobody else computes prompts.
TEST_F(RoomsTest, WithoutAPrefillServerRequestsWaitForOne) {
  const HeldPort p, a;
  Engine consumer(Role(a, "decode"));
  ServeBoth({p.address(), a.address()}, 1, 1, {"--max_queue_time=2s"});
  EXPECT_THAT(Generate(stub(), Request({5, 6}, 10)).status.error_message(), HasSubstr("--max_queue_time"));
  EXPECT_EQ(consumer.counts().taken, 0);
  auto producer = std::make_unique<Engine>(Role(p, "prefill"));
  EXPECT_TRUE(cluster_->WaitFor("the prefill server",
                                [](const v1::ClusterState& state) { return Serving(state) == 2; }));
  ExpectRightTokens(10);
}

}  // namespace
}  // namespace bfio::testing
