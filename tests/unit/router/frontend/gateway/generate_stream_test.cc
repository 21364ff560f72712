// One call with its outputs, without a connection: the test plays the part of gRPC. The protocol is vLLM's;
// the call is the same for all (gateway_service_test.cc).
#include "router/frontend/gateway/generate_stream.h"

#include <gmock/gmock.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/frontend/gateway/answers.h"
#include "tests/unit/router/frontend/fake_handler.h"
#include "tests/unit/router/frontend/gateway/protocols.h"

namespace bfio::router::gateway {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Delivery = TokenSink::Delivery;
using Response = bfio::testing::Vllm::GenerateResponse;
using Stream = GenerateStream;
using Tokens = std::vector<uint32_t>;
using bfio::testing::Sglang;
using bfio::testing::Vllm;

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

// --- answers of other methods ---

Loads TwoRanks() {
  Loads loads;
  loads.timestamp = absl::FromUnixMillis(1'500);
  loads.version = "1.2.3";
  loads.ranks = 2;
  loads.loads = {{.rank = 0,
                  .running_requests = 3,
                  .waiting_requests = 4,
                  .waiting_tokens = 900,
                  .used_tokens = 50,
                  .max_tokens = 200,
                  .tokens_per_second = 12.5,
                  .slots = 6},
                 {.rank = 1,
                  .running_requests = 1,
                  .waiting_requests = 4,
                  .waiting_tokens = 900,
                  .used_tokens = 10,
                  .max_tokens = 200,
                  .tokens_per_second = 7.5,
                  .slots = 6}};
  return loads;
}

template <typename P>
class Answers : public ::testing::Test {
 protected:
  static absl::StatusOr<typename P::GetLoadsResponse> LoadsAre(const Loads& loads,
                                                               std::optional<int32_t> rank) {
    BFIO_ASSIGN_OR_RETURN(const MessagePtr message, ProtocolFor<P>().LoadsOf(loads, rank));
    return static_cast<const typename P::GetLoadsResponse&>(*message);
  }
  static typename P::GetModelInfoResponse Model(const ModelFiles* model, const Serving& serving) {
    return static_cast<const typename P::GetModelInfoResponse&>(
        *ProtocolFor<P>().ModelInfo("m", model, serving));
  }
};
TYPED_TEST_SUITE(Answers, bfio::testing::EngineProtocols, bfio::testing::ProtocolNames);

// The pool is one for all ranks: its requests count once.
TYPED_TEST(Answers, TheLoadIsThatOfAllRanksTogether) {
  EXPECT_EQ(
      this->LoadsAre(TwoRanks(), std::nullopt)->ShortDebugString(),
      std::string("timestamp: \"1970-01-01T00:00:01.500000+00:00\" version: \"1.2.3\" dp_rank_count: 1 "
                  "loads { num_running_reqs: 4 num_waiting_reqs: 4 num_total_reqs: 8 num_used_tokens: 60 "
                  "max_total_num_tokens: 400 token_usage: 0.15 gen_throughput: 20 utilization: 0.15 "
                  "max_running_requests: 12 num_waiting_uncached_tokens: 900 }") +
          (std::is_same_v<TypeParam, Vllm>
               ? ""
               : " aggregate { total_running_reqs: 4 total_waiting_reqs: 4 total_reqs: 8 "
                 "avg_token_usage: 0.15 avg_throughput: 20 avg_utilization: 0.15 }"));
  const auto none = *this->LoadsAre(Loads(), 0);
  ASSERT_EQ(none.loads_size(), 1) << "a gateway takes an empty answer for a dead engine";
  EXPECT_EQ(none.loads(0).token_usage(), 0);
  Loads large = TwoRanks();
  large.loads[0].max_tokens = int64_t{1} << 40;
  EXPECT_EQ(this->LoadsAre(large, 0)->loads(0).max_total_num_tokens(), std::numeric_limits<int32_t>::max());
  for (const int32_t rank : {1, -1}) EXPECT_TRUE(absl::IsNotFound(this->LoadsAre(large, rank).status()));
}

// How long the engine is silent (prefill_pending_tokens) is not told.
TEST(LoadRecords, ARecordHasTheLoadOfAPoll) {
  EXPECT_EQ(LoadRecord(TwoRanks()).ShortDebugString(),
            "running_requests: 4 waiting_requests: 4 waiting_uncached_tokens: 900 token_usage: 0.15 "
            "gen_throughput: 20 max_running_requests: 12 load_only: true num_used_tokens: 60 "
            "max_total_num_tokens: 400 active_token_usage: 0.15");
  EXPECT_TRUE(LoadRecord(Loads()).has_waiting_uncached_tokens()) << "none wait, which is not: unknown";
}

TEST(ServerInfo, TheServerIsOneEngine) {
  const auto info = [](const Protocol& protocol, const std::string& dtype) {
    return protocol.ServerInfo(TwoRanks(), absl::Milliseconds(1'000), dtype);
  };
  EXPECT_EQ(info(VllmProtocol(), "")->ShortDebugString(),
            "active_requests: 8 uptime_seconds: 1 server_type: \"vllm-grpc\" data_parallel_size: 1 "
            "max_num_seqs: 12");
  EXPECT_EQ(static_cast<const Vllm::GetServerInfoResponse&>(*info(VllmProtocol(), "bfloat16")).model_dtype(),
            "torch.bfloat16");
  auto sglang = static_cast<const Sglang::GetServerInfoResponse&>(*info(SglangProtocol(), ""));
  EXPECT_EQ(Sglang::Ranks(sglang), 1);
  EXPECT_EQ(Sglang::Slots(sglang), 12);
  sglang.clear_server_args();
  EXPECT_EQ(sglang.ShortDebugString(),
            "active_requests: 8 uptime_seconds: 1 sglang_version: \"1.2.3\" server_type: \"grpc\" "
            "start_time { } max_total_num_tokens: 400");
}

TYPED_TEST(Answers, TheModelIsThatOfItsFiles) {
  ModelFiles model;
  model.directory = "/models/m";
  model.vocab_size = 324;
  model.eos_token_ids = {2, 7};
  model.bos_token_id = 1;
  model.pad_token_id = 3;
  model.model_type = "llama";
  model.architectures = {"LlamaForCausalLM"};
  const auto expected = bfio::testing::FromText<typename TypeParam::GetModelInfoResponse>(R"(
      model_path: "/models/m" is_generation: true max_context_length: 4096 vocab_size: 324
      served_model_name: "m" tokenizer_path: "/models/m" model_type: "llama" architectures: "LlamaForCausalLM"
      eos_token_ids: [2, 7] pad_token_id: 3 bos_token_id: 1 max_req_input_len: 4096)");
  EXPECT_EQ(this->Model(&model, {true, 4096}).ShortDebugString(), expected.ShortDebugString());
  const auto without_files = this->Model(nullptr, {});
  EXPECT_EQ(without_files.served_model_name(), "m");
  EXPECT_EQ(without_files.tokenizer_path(), "");
  EXPECT_EQ(static_cast<int>(without_files.max_context_length()), 0);
}

}  // namespace
}  // namespace bfio::router::gateway
