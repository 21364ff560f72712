// The pool of servers: what they have measured, and what happens to a chain when one of its servers is lost.
#include "chains/router/chain_pool.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "router/requests/request_lifecycle.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;

// --- what servers have measured ---

TEST(ServerTimesTest, AreThoseOfAMeanRequest) {
  const auto times = TimesOf(std::vector<double>{0.020, 0.021, 0.3, 0});
  ASSERT_TRUE(times.has_value());
  EXPECT_DOUBLE_EQ((*times)[0].compute, 0.021) << "5 % less is the median";
  EXPECT_DOUBLE_EQ((*times)[1].compute, 0.021);
  EXPECT_DOUBLE_EQ((*times)[2].compute, 0.3);
  EXPECT_DOUBLE_EQ((*times)[3].compute, 0.021) << "the median of those that have measured";
  for (const core::ServerTimes& of : *times) EXPECT_DOUBLE_EQ(of.communication, 0.021);
  EXPECT_FALSE(TimesOf(std::vector<double>{0, 0}).has_value());
  EXPECT_FALSE(TimesOf({}).has_value());
}

// --- lifecycle of chains ---

constexpr uint64_t kFirst = 1000;

class ChainPoolTest : public ::testing::Test {
 protected:
  // Six blocks; pages of 16 tokens, so a request of 64 tokens takes 5 pages, 80 bytes in a block.
  static v1::ServerMessage Hello(const std::string& id, uint64_t memory) {
    v1::ServerMessage message;
    v1::ServerHello* hello = message.mutable_hello();
    hello->set_server_id(id);
    hello->set_pipeline_address(id + ":1");
    hello->set_memory_bytes(memory);
    hello->set_blocks(6);
    hello->set_block_bytes(100);
    hello->set_ends_bytes(10);
    hello->set_kv_token_bytes(1);
    hello->set_model("m");
    hello->set_page_tokens(16);
    hello->set_max_positions(4096);
    hello->set_version("1.2.3");
    return message;
  }
  static v1::ServerMessage Ready(uint64_t chain, const std::string& error = "") {
    v1::ServerMessage message;
    message.mutable_ready()->set_chain(chain);
    message.mutable_ready()->set_error(error);
    return message;
  }

  // Announces a part of a chain that an earlier router has composed.
  static void AddStage(v1::ServerMessage& hello, uint64_t chain, uint32_t stages, uint32_t at, uint32_t first,
                       uint32_t end) {
    v1::ChainStage* stage = hello.mutable_hello()->add_stages();
    stage->set_chain(chain);
    stage->set_stage(at);
    stage->set_stages(stages);
    stage->set_slots(1);
    stage->set_first_block(first);
    stage->set_hosted_first(first);
    stage->set_end_block(end);
    stage->set_hosted_end(end);
  }

  void Join(ChainPool::Session session, uint64_t memory) {
    const absl::Status status = pool_.OnMessage(session, Hello(absl::StrCat("s", session), memory), now_);
    EXPECT_TRUE(status.ok()) << status;
  }
  // Advances the time. Returns the messages that the pool has sent, as text.
  std::vector<std::string> After(absl::Duration time) {
    now_ += time;
    pool_.OnTime(now_);
    std::vector<std::string> sent;
    for (const ChainPool::Outgoing& out : pool_.TakeOutgoing()) {
      const auto& message = out.message;
      std::string& text = sent.emplace_back(absl::StrCat(out.to, ": "));
      if (message.has_stage()) {
        const v1::ChainStage& stage = message.stage();
        absl::StrAppend(&text, "stage ", stage.chain(), " [", stage.first_block(), ",", stage.end_block(),
                        ") x", stage.slots(), " -> ", stage.successor());
      } else if (message.has_start()) {
        absl::StrAppend(&text, "start ", message.start().chain());
      } else {
        absl::StrAppend(&text, "drop ", message.drop().chain());
      }
    }
    return sent;
  }
  void ServeWithThree() {
    // A block takes 100 + 4 * 80 = 420 bytes.
    Join(1, 10 + 3 * 420);
    Join(2, 10 + 2 * 420);
    Join(3, 10 + 1 * 420);
    EXPECT_THAT(After(absl::Seconds(1)),
                ElementsAre("1: stage 1000 [0,3) x4 -> s2:1", "2: stage 1000 [3,5) x4 -> s3:1",
                            "3: stage 1000 [5,6) x4 -> s1:1"));
    for (const ChainPool::Session session : {1, 2, 3}) {
      EXPECT_EQ(pool_.chains(), 0);
      EXPECT_TRUE(pool_.OnMessage(session, Ready(kFirst), now_).ok());
    }
    EXPECT_THAT(After(absl::ZeroDuration()), ElementsAre("1: start 1000", "2: start 1000", "3: start 1000"));
    EXPECT_EQ(pool_.chains(), 1);
  }

  void Broken(ChainPool::Session session, uint64_t chain) {
    v1::ServerMessage broken;
    broken.mutable_broken()->set_chain(chain);
    EXPECT_TRUE(pool_.OnMessage(session, broken, now_).ok());
  }
  // A server that has measured the time of a step.
  void JoinWithSpeed(ChainPool::Session session, double step_s = 0.001, uint64_t memory = 10 + 3 * 420) {
    v1::ServerMessage hello = Hello(absl::StrCat("s", session), memory);
    hello.mutable_hello()->set_block_step_s(step_s);
    EXPECT_TRUE(pool_.OnMessage(session, hello, now_).ok());
  }
  ChainPool pool_{{2, 4, 64, absl::Seconds(1), absl::Seconds(60), absl::Seconds(10)}, kFirst};
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(ChainPoolTest, ComposesWithEnoughServersAndStartsWhenAllAreReady) {
  Join(9, 100);
  EXPECT_TRUE(After(absl::Hours(1)).empty()) << "one of two";
  pool_.OnGone(9, now_);
  ServeWithThree();
  EXPECT_TRUE(After(absl::Hours(10)).empty()) << "a chain that serves is left alone";
}

TEST_F(ChainPoolTest, CompositionUsesWhatServersHaveMeasured) {
  JoinWithSpeed(1);
  JoinWithSpeed(2, 0.01);
  JoinWithSpeed(3);
  // The slow server is not used, and the chain reports the time of a mean request.
  EXPECT_THAT(After(absl::Seconds(1)),
              ElementsAre("1: stage 1000 [0,3) x4 -> s3:1", "3: stage 1000 [3,6) x4 -> s1:1"));
  const auto composed = pool_.TakeComposed();
  ASSERT_TRUE(composed.has_value());
  EXPECT_DOUBLE_EQ(composed->servers[0].times.compute, 128 * 0.001);
  EXPECT_FALSE(pool_.TakeComposed().has_value()) << "once";
}

TEST_F(ChainPoolTest, AServerWithABrokenChainIsComposedAgain) {
  ServeWithThree();
  Broken(2, 999);
  EXPECT_TRUE(After(absl::ZeroDuration()).empty()) << "of another chain";
  Broken(2, kFirst);
  EXPECT_THAT(After(absl::ZeroDuration()), ElementsAre("1: drop 1000", "3: drop 1000"));
  EXPECT_EQ(After(absl::Seconds(1)).size(), 3u);
}

TEST_F(ChainPoolTest, AServerThatDoesNotLoadInTimeGetsNoMoreParts) {
  Join(1, 10 + 6 * 180);
  Join(2, 10 + 6 * 180);
  EXPECT_EQ(After(absl::Seconds(1)).size(), 2u) << "half of the model each";
  EXPECT_TRUE(pool_.OnMessage(1, Ready(1000, "no such file"), now_).ok());
  EXPECT_THAT(After(absl::ZeroDuration()), ElementsAre("2: drop 1000"));
  EXPECT_THAT(After(absl::Seconds(1)), ElementsAre("2: stage 1001 [0,6) x1 -> s2:1"));
  EXPECT_THAT(After(absl::Seconds(60)), ElementsAre("2: drop 1001"));
  EXPECT_TRUE(After(absl::Hours(1)).empty());
}

TEST_F(ChainPoolTest, AnIdleServerOfAnotherModelYieldsToOneWithChains) {
  v1::ServerMessage wrong = Hello("wrong", 100), right = Hello("s1", 2000);
  wrong.mutable_hello()->set_model("another");
  EXPECT_TRUE(pool_.OnMessage(1, wrong, now_).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(pool_.OnMessage(2, right, now_))) << "it brings nothing";
  EXPECT_TRUE(pool_.TakePutOut().empty());
  AddStage(right, 77, 2, 0, 0, 3);
  EXPECT_TRUE(pool_.OnMessage(3, right, now_).ok());
  EXPECT_THAT(pool_.TakePutOut(), ElementsAre(1));
  EXPECT_EQ(pool_.servers(), 1);
  pool_.OnGone(1, now_);
  EXPECT_TRUE(absl::IsFailedPrecondition(pool_.OnMessage(4, wrong, now_)));
  wrong.mutable_hello()->add_stages()->set_chain(78);
  EXPECT_TRUE(absl::IsFailedPrecondition(pool_.OnMessage(5, wrong, now_))) << "who is in a chain stays";
  EXPECT_EQ(pool_.servers(), 1);
}

TEST_F(ChainPoolTest, IncompleteChainsOfAnEarlierRouterAreDropped) {
  v1::ServerMessage hello = Hello("s1", 2000);
  for (const uint64_t chain : {uint64_t{77}, uint64_t{78}, kFirst + 5}) {
    AddStage(hello, chain, 2, 0, 0, chain == 78 ? 7 : 3);
  }
  EXPECT_TRUE(pool_.OnMessage(1, hello, now_).ok());
  EXPECT_THAT(After(absl::ZeroDuration()), ElementsAre("1: drop 78", "1: drop 1005"));
  EXPECT_THAT(After(absl::Seconds(10)), ElementsAre("1: drop 77"));
}

// The old stream is half open: the server has closed it, and the router has not noticed.
TEST_F(ChainPoolTest, TheSameServerReplacesItsOldStreamAtOnce) {
  v1::ServerMessage hello = Hello("s1", 2000);
  hello.mutable_hello()->set_server_instance(5);
  hello.mutable_hello()->set_stream(1);
  ASSERT_TRUE(pool_.OnMessage(1, hello, now_).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(pool_.OnMessage(2, hello, now_))) << "the same stream";
  hello.mutable_hello()->set_stream(2);
  hello.mutable_hello()->set_server_instance(6);
  EXPECT_TRUE(absl::IsAlreadyExists(pool_.OnMessage(3, hello, now_))) << "another process";
  hello.mutable_hello()->set_server_instance(5);
  EXPECT_TRUE(pool_.OnMessage(4, hello, now_).ok());
  EXPECT_EQ(pool_.servers(), 1);
  pool_.OnGone(1, now_);
  EXPECT_EQ(pool_.servers(), 1) << "the old one's end means nothing";
}

TEST_F(ChainPoolTest, InvalidMessagesEndOnlyTheirSendersStream) {
  ServeWithThree();
  EXPECT_TRUE(absl::IsInvalidArgument(pool_.OnMessage(8, Ready(kFirst), now_))) << "no hello";
  EXPECT_TRUE(absl::IsInvalidArgument(pool_.OnMessage(1, Hello("other", 1000), now_))) << "two hellos";
  EXPECT_TRUE(absl::IsAlreadyExists(pool_.OnMessage(8, Hello("s1", 1000), now_)));
  v1::ServerMessage other = Hello("s8", 1000);
  other.mutable_hello()->set_model("another");
  EXPECT_TRUE(absl::IsFailedPrecondition(pool_.OnMessage(8, other, now_)));
  other = Hello("s8", 1000);
  other.mutable_hello()->set_blocks(other.hello().blocks() + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(pool_.OnMessage(8, other, now_))) << "other sizes of the same model";
  other = Hello("s8", 1000);
  other.mutable_hello()->set_version("0.0.9");
  EXPECT_EQ(pool_.OnMessage(8, other, now_),
            absl::FailedPreconditionError("the servers of this pool run version 1.2.3, not 0.0.9"));
  EXPECT_TRUE(absl::IsInvalidArgument(pool_.OnMessage(1, v1::ServerMessage(), now_)));
  for (const auto& spoil : std::vector<std::function<void(v1::ServerHello*)>>{
           [](auto* h) { h->clear_server_id(); }, [](auto* h) { h->set_server_id(std::string(201, 'x')); },
           [](auto* h) { h->clear_pipeline_address(); }, [](auto* h) { h->clear_memory_bytes(); },
           [](auto* h) { h->set_memory_bytes(~uint64_t{0}); }, [](auto* h) { h->clear_blocks(); },
           [](auto* h) { h->set_blocks(1 << 20); }, [](auto* h) { h->clear_block_bytes(); },
           [](auto* h) { h->set_ends_bytes(~uint64_t{0}); }, [](auto* h) { h->clear_kv_token_bytes(); },
           [](auto* h) { h->clear_page_tokens(); }, [](auto* h) { h->set_max_positions(1); },
           [](auto* h) { h->clear_model(); }, [](auto* h) { h->set_block_step_s(-1); },
           [](auto* h) { h->set_block_row_s(std::nan("")); }}) {
    v1::ServerMessage hello = Hello("s8", 1000);
    spoil(hello.mutable_hello());
    EXPECT_TRUE(absl::IsInvalidArgument(pool_.OnMessage(8, hello, now_))) << hello.ShortDebugString();
  }
  EXPECT_TRUE(pool_.OnMessage(2, Ready(12345), now_).ok()) << "of a chain that has ended";
  EXPECT_EQ(pool_.servers(), 3);
  EXPECT_EQ(pool_.chains(), 1);
  EXPECT_TRUE(After(absl::Hours(1)).empty());
}

}  // namespace
}  // namespace bfio::router
