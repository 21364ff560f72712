// Prompts computed by one SGLang server while another one waits for them (bootstrap rooms).
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

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
    std::vector<std::unique_ptr<RequestStream>> streams;
    const auto prompt = [](int i) {
      return Tokens(5 + static_cast<size_t>(i) % 7, 2'000 + static_cast<uint32_t>(i));
    };
    // A request for one token has a prompt, too.
    const auto length = [](int i) { return static_cast<uint32_t>(i % 10 == 0 ? 1 : 20 + i % 20); };
    for (int i = 0; i < count; ++i)
      streams.push_back(std::make_unique<RequestStream>(stub(), Request(prompt(i), length(i))));
    meanwhile();
    for (int i = 0; i < count; ++i) {
      const GenerateResult& result = streams[i]->End();
      EXPECT_TRUE(result.status.ok()) << i << ": " << result.status.error_message();
      EXPECT_EQ(result.tokens, TokensAfter(prompt(i), length(i))) << i;
    }
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
