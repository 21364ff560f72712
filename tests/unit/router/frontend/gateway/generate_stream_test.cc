// One call with its outputs, without a connection: the test plays the part of gRPC. The protocol is vLLM's;
// the call is the same for all (gateway_service_test.cc).
#include "router/frontend/gateway/generate_stream.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/router/frontend/fake_handler.h"
#include "tests/unit/router/frontend/gateway/protocols.h"

namespace bfio::router::gateway {
namespace {

using Stream = GenerateStream;
using Response = bfio::testing::Vllm::GenerateResponse;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Delivery = TokenSink::Delivery;
using Tokens = std::vector<uint32_t>;

constexpr absl::Time kNow = absl::UnixEpoch();

class UnboundCall : public ::testing::Test {
 protected:
  ~UnboundCall() override {
    sinks_.clear();
    stream_->OnDone();
  }

  void Begin(size_t outputs, bool stream, std::optional<StopText> stop_text = std::nullopt) {
    Stream::Shape shape;
    for (size_t i = 0; i < outputs; ++i) shape.ids.push_back(100 + i);
    shape.stream = stream;
    shape.prompt_tokens = 3;
    shape.stop_token_ids = {11};
    shape.stop_text = std::move(stop_text);
    sinks_ = stream_->BeginOutputs(std::move(shape));
  }

  // An output gets tokens; it ends.
  Delivery Deliver(size_t output, const Tokens& tokens, absl::Time now = kNow) {
    return sinks_[output]->Deliver(0, tokens, {}, now);
  }
  bool End(size_t output) { return sinks_[output]->End(absl::OkStatus(), FinishOf(FinishReason::kStop)); }

  const std::shared_ptr<SharedCapacity> kept_ = std::make_shared<SharedCapacity>(8192);
  std::vector<core::RequestId> cancelled_;
  std::shared_ptr<Stream> stream_ =
      Stream::Create(nullptr, {.protocol = &VllmProtocol(),
                               .limits = {.buffer_tokens = 4, .timeout = absl::Seconds(10)},
                               .kept = kept_,
                               .cancel = [this](core::RequestId id, bool) { cancelled_.push_back(id); }});
  std::vector<std::shared_ptr<TokenSink>> sinks_;
};

TEST_F(UnboundCall, OneFlushServesAllOutputs) {
  Begin(2, /*stream=*/true);
  EXPECT_EQ(sinks_[1]->id(), 101u);
  EXPECT_EQ(Deliver(0, {7}), Delivery::kFlush);
  EXPECT_EQ(Deliver(1, {8}), Delivery::kTaken);
  sinks_[0]->Flush();
  EXPECT_EQ(Deliver(0, {7}), Delivery::kTaken) << "a write is under way";
  EXPECT_EQ(Deliver(0, {7}, kNow + absl::Seconds(11)), Delivery::kTooSlow);
  stream_->OnWriteDone(true);  // the other output's
  stream_->OnWriteDone(true);
  stream_->OnWriteDone(true);
  EXPECT_EQ(Deliver(1, {8}), Delivery::kFlush);
}

// The code that ends a request keeps a weak pointer to its sink, to break off a client that does not read.
TEST_F(UnboundCall, ASinkLivesAsLongAsItsCall) {
  Begin(2, /*stream=*/true);
  const std::weak_ptr<TokenSink> kept = sinks_[1];
  sinks_.clear();
  ASSERT_NE(kept.lock(), nullptr);
  EXPECT_EQ(kept.lock()->id(), 101u);
}

TEST_F(UnboundCall, UnreadTokensOfAllOutputsTogetherAreBounded) {
  Begin(2, /*stream=*/true);
  ASSERT_EQ(Deliver(0, {7}), Delivery::kFlush);
  sinks_[0]->Flush();
  EXPECT_EQ(Deliver(0, {7, 7}), Delivery::kTaken);
  EXPECT_EQ(Deliver(1, {8, 8}), Delivery::kTaken);
  EXPECT_EQ(Deliver(1, {8}), Delivery::kTooSlow);
  stream_->OnWriteDone(true);
  EXPECT_EQ(Deliver(1, {8}), Delivery::kTaken);
}

TEST_F(UnboundCall, AWholeResponseDoesNotCountAsUnread) {
  Begin(2, /*stream=*/false);
  EXPECT_EQ(Deliver(0, Tokens(100, 7)), Delivery::kTaken) << "nothing to write";
  EXPECT_FALSE(End(0)) << "nor yet";
  EXPECT_EQ(Deliver(1, Tokens(100, 7)), Delivery::kTaken);
  EXPECT_EQ(Deliver(1, {7}, kNow + absl::Hours(1)), Delivery::kTaken);
  EXPECT_TRUE(End(1));
}

// The sum over the caller's calls has a bound, and another caller's share stays free.
TEST_F(UnboundCall, BeyondItsCallersShareAWholeResponseEnds) {
  Begin(2, /*stream=*/false);
  EXPECT_TRUE(kept_->Take({"", ""}, 1000)) << "another call";
  EXPECT_EQ(Deliver(0, Tokens(3000, 7)), Delivery::kTaken);
  EXPECT_THAT(cancelled_, IsEmpty());
  (void)Deliver(1, Tokens(200, 7));
  EXPECT_THAT(cancelled_, ElementsAre(100, 101));
  EXPECT_TRUE(stream_->HasEnded());
  EXPECT_TRUE(kept_->Take({"other", ""}, 2000));
  sinks_.clear();
}

TEST_F(UnboundCall, AnErrorOfOneOutputCancelsTheOthers) {
  Begin(3, /*stream=*/true);
  EXPECT_TRUE(End(2));
  EXPECT_FALSE(sinks_[2]->End(absl::InternalError("late"), std::nullopt)) << "an output ends once";
  EXPECT_THAT(cancelled_, IsEmpty());
  EXPECT_THAT(stream_->LiveOutputs(), ElementsAre(0, 1));
  EXPECT_FALSE(sinks_[0]->End(absl::UnavailableError("lost"), std::nullopt))
      << "a flush is asked for already";
  EXPECT_THAT(cancelled_, ElementsAre(101));
  EXPECT_EQ(Deliver(1, {8}), Delivery::kTaken) << "it is dropped";
  EXPECT_FALSE(sinks_[1]->End(absl::CancelledError(), std::nullopt));
}

// Each output's sink is broken off some time after its own end. The output that ended last decides whether
// the client of the whole call has had this time.
TEST_F(UnboundCall, OnlyTheOutputThatEndedTheCallBreaksItOff) {
  Begin(3, /*stream=*/true);
  EXPECT_TRUE(End(1));
  EXPECT_FALSE(stream_->MayBreakOff(1)) << "the others go on";
  (void)End(2);
  (void)End(0);
  EXPECT_FALSE(stream_->MayBreakOff(1)) << "the end of the call is new";
  EXPECT_FALSE(stream_->MayBreakOff(2));
  EXPECT_TRUE(stream_->MayBreakOff(0));
}

TEST_F(UnboundCall, ATextThatEndsAnOutputEndsItsRequest) {
  auto text = TokenText::Parse(R"({"model":{"vocab":{"a":0,"b":1,"c":2}},"decoder":{"type":"ByteLevel"}})");
  ASSERT_TRUE(text.ok());
  Begin(2, /*stream=*/true,
        StopText(std::make_shared<const TokenText>(*std::move(text)), {"ab"}, /*special=*/false));
  EXPECT_EQ(Deliver(0, {0}), Delivery::kFlush);
  EXPECT_EQ(Deliver(1, {1}), Delivery::kTaken) << "each output has a text of its own";
  EXPECT_EQ(Deliver(0, {1, 2, 2}), Delivery::kEnough);
  EXPECT_FALSE(End(0));
  EXPECT_THAT(stream_->LiveOutputs(), ElementsAre(1));
}

// --- messages of engines ---

PassedPtr Chunk(size_t tokens) {
  Response response;
  for (size_t i = 0; i < tokens; ++i) response.mutable_chunk()->add_token_ids(1);
  return PassedMessage<Response>::Make(std::move(response));
}

TEST_F(UnboundCall, UnreadMessagesAreBounded) {
  Begin(2, /*stream=*/true);
  ASSERT_EQ(sinks_[0]->Pass({Chunk(1)}, kNow), Delivery::kFlush);
  sinks_[0]->Flush();
  EXPECT_EQ(sinks_[0]->Pass({Chunk(1)}, kNow), Delivery::kTaken);
  EXPECT_EQ(sinks_[1]->Pass({Chunk(100)}, kNow), Delivery::kTooSlow) << "by their bytes";
  EXPECT_EQ(sinks_[0]->Pass({Chunk(1)}, kNow + absl::Seconds(11)), Delivery::kTooSlow);
}

// A message of many small parts takes a hundred times its bytes.
PassedPtr Parts(size_t parts, std::shared_ptr<const void> share = nullptr) {
  Response response;
  for (size_t i = 0; i < parts; ++i) response.mutable_chunk()->mutable_output_logprobs()->add_top_logprobs();
  return PassedMessage<Response>::Make(std::move(response), std::move(share));
}

TEST_F(UnboundCall, AMessageHoldsItsShareUntilItIsWritten) {
  Begin(1, /*stream=*/true);
  auto share = std::make_shared<int>();
  ASSERT_EQ(sinks_[0]->Pass({Parts(1, share)}, kNow), Delivery::kFlush);
  sinks_[0]->Flush();
  EXPECT_EQ(share.use_count(), 2) << "it is being written";
  stream_->OnWriteDone(true);
  EXPECT_EQ(share.use_count(), 1);
}

TEST_F(UnboundCall, AWholeResponseCountsByItsMemory) {
  Begin(1, /*stream=*/false);
  EXPECT_EQ(sinks_[0]->Pass({Parts(50)}, kNow), Delivery::kTaken);
  EXPECT_EQ(sinks_[0]->Pass({Parts(500)}, kNow), Delivery::kFlush) << "1 KiB on the wire";
  EXPECT_THAT(cancelled_, ElementsAre(100));
}

// Two of these messages are within the caller's share of kept_.
TEST_F(UnboundCall, AWholeResponseIsBounded) {
  Begin(128, /*stream=*/false);
  Response end;
  end.mutable_complete()->set_finish_reason(std::string(6 << 10, 'x'));
  const PassedPtr large = PassedMessage<Response>::Make(std::move(end));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(sinks_[i]->Pass({large}, kNow), Delivery::kTaken);
  EXPECT_THAT(cancelled_, IsEmpty());
  EXPECT_EQ(sinks_[4]->Pass({large}, kNow), Delivery::kFlush);
  EXPECT_EQ(cancelled_.size(), 128u);
  EXPECT_EQ(sinks_[5]->Pass({large}, kNow), Delivery::kTaken) << "and no more comes";
}

// What engines send as a stream, for a client that wants none: as if the engine had sent it whole.
template <typename P>
void ExpectFolded() {
  using R = typename P::GenerateResponse;
  const auto message = [](const char* text, bool of_prompt, bool of_end) {
    auto response = bfio::testing::FromText<R>(text);
    const auto unknown = [](auto* in) { in->GetReflection()->MutableUnknownFields(in)->AddVarint(99, 7); };
    if (of_prompt && response.has_chunk()) unknown(response.mutable_chunk()->mutable_input_logprobs());
    if (of_prompt && response.has_complete()) unknown(response.mutable_complete()->mutable_input_logprobs());
    if (of_end) unknown(response.mutable_complete());
    return PassedMessage<R>::Make(std::move(response));
  };
  MessagePtr so_far;
  const auto fold = [&](const char* text, bool of_prompt = false, bool of_end = false) {
    return ProtocolFor<P>().Fold(*message(text, of_prompt, of_end), so_far);
  };
  EXPECT_EQ(
      fold(
          "chunk { token_ids: [5, 6] output_logprobs { token_ids: [5, 6] top_logprobs {} top_logprobs {} } }",
          true),
      nullptr);
  EXPECT_EQ(fold("chunk { token_ids: 7 output_logprobs { token_ids: 7 top_logprobs { values: -1 } } }"),
            nullptr);
  // Engines repeat the last chunk.
  const PassedPtr folded = fold(
      "complete { output_ids: 7 completion_tokens: 1 prompt_tokens: 4 finish_reason: 'stop' "
      "matched_token_id: 7"
      " output_logprobs { token_ids: 7 top_logprobs { values: -1 } } }",
      false, true);
  ASSERT_NE(folded, nullptr);
  const PassedPtr whole = message(
      "complete { output_ids: [5, 6, 7] completion_tokens: 3 prompt_tokens: 4 finish_reason: 'stop' "
      "matched_token_id: 7"
      " output_logprobs { token_ids: [5, 6, 7] top_logprobs {} top_logprobs {} top_logprobs { values: -1 } } "
      "}",
      true, true);
  EXPECT_EQ(PassedMessage<R>::In(folded.get())->SerializeAsString(),
            PassedMessage<R>::In(whole.get())->SerializeAsString());
}

TEST(PassedMessage, AStreamIsFoldedWithTheFieldsThatAreNotKnown) {
  ExpectFolded<bfio::testing::Vllm>();
  ExpectFolded<bfio::testing::Sglang>();
}

TEST(PassedMessage, IsOfOneTypeOnly) {
  const PassedPtr chunk = Chunk(2);
  EXPECT_EQ(PassedMessage<Response>::In(chunk.get())->chunk().token_ids_size(), 2);
  EXPECT_EQ(PassedMessage<bfio::testing::Vllm::GenerateRequest>::In(chunk.get()), nullptr);
  EXPECT_EQ(PassedMessage<bfio::testing::Vllm::GenerateRequest>::In(nullptr), nullptr);
}

}  // namespace
}  // namespace bfio::router::gateway
