#include "router/frontend/client_stream.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/net/call_service.h"
#include "gtest/gtest.h"
#include "tests/testing/loopback_server.h"

namespace bfio::router {
namespace {

using Delivery = ClientStream::Delivery;
using Tokens = std::vector<uint32_t>;

constexpr StreamLimits kSmallLimits{.buffer_tokens = 4, .timeout = absl::Seconds(10)};
constexpr absl::Time kFirstToken = absl::UnixEpoch();

// --- without a call: the test plays the part of gRPC ---

class UnboundClient : public ::testing::Test {
 protected:
  ~UnboundClient() override { stream_->OnDone(); }

  std::shared_ptr<ClientStream> stream_ = ClientStream::Create(nullptr, {.id = 1, .limits = kSmallLimits});
};

TEST_F(UnboundClient, OnlyTheFirstTokenRequestsAFlush) {
  EXPECT_EQ(stream_->Deliver(0, Tokens{7}, {}, kFirstToken), Delivery::kFlush);
  EXPECT_EQ(stream_->Deliver(1, Tokens{7}, {}, kFirstToken), Delivery::kTaken);
  stream_->Flush();
  EXPECT_EQ(stream_->Deliver(2, Tokens{7}, {}, kFirstToken), Delivery::kTaken) << "a write is under way";
  stream_->OnWriteDone(true);  // together with the next one
  stream_->OnWriteDone(true);
  EXPECT_EQ(stream_->Deliver(3, Tokens{7}, {}, kFirstToken), Delivery::kFlush);
}

TEST_F(UnboundClient, ABufferFullOfTokensBehindAWriteIsTooSlow) {
  ASSERT_EQ(stream_->Deliver(0, Tokens{7}, {}, kFirstToken), Delivery::kFlush);
  stream_->Flush();
  for (uint32_t index = 1; index <= 4; ++index) {
    EXPECT_EQ(stream_->Deliver(index, Tokens{7}, {}, kFirstToken), Delivery::kTaken);
  }
  EXPECT_EQ(stream_->Deliver(5, Tokens{7}, {}, kFirstToken), Delivery::kTooSlow);
  stream_->OnWriteDone(true);  // all four are written together
  EXPECT_EQ(stream_->Deliver(5, Tokens{7}, {}, kFirstToken), Delivery::kTaken);
}

TEST_F(UnboundClient, ABufferThatIsNotBehindAWriteHasNoBound) {
  const Tokens many(100, 7);
  EXPECT_EQ(stream_->Deliver(0, many, {}, kFirstToken), Delivery::kFlush);
  EXPECT_EQ(stream_->Deliver(100, many, {}, kFirstToken), Delivery::kTaken);
}

TEST_F(UnboundClient, AWriteIsTooSlowAfterTheTimeoutSinceTokensWaitBehindIt) {
  ASSERT_EQ(stream_->Deliver(0, Tokens{7}, {}, kFirstToken), Delivery::kFlush);
  stream_->Flush();
  const absl::Time waits = kFirstToken + absl::Hours(1);
  EXPECT_EQ(stream_->Deliver(1, Tokens{7}, {}, waits), Delivery::kTaken);
  EXPECT_EQ(stream_->Deliver(2, Tokens{7}, {}, waits + kSmallLimits.timeout), Delivery::kTaken);
  EXPECT_EQ(stream_->Deliver(3, Tokens{7}, {}, waits + kSmallLimits.timeout + absl::Milliseconds(1)),
            Delivery::kTooSlow);
  stream_->OnWriteDone(true);
  EXPECT_EQ(stream_->Deliver(3, Tokens{7}, {}, waits + absl::Hours(2)), Delivery::kTaken)
      << "a new write, a new time";
}

TEST_F(UnboundClient, AnEndedStreamTakesNothingAndEndsOnce) {
  EXPECT_TRUE(stream_->End(absl::OkStatus(), std::nullopt));
  EXPECT_FALSE(stream_->End(absl::CancelledError(), std::nullopt));
  EXPECT_EQ(stream_->Deliver(0, Tokens{7}, {}, kFirstToken), Delivery::kTaken);
}

TEST_F(UnboundClient, ABrokenStreamRequestsNoFlushUntilItIsEnded) {
  ASSERT_EQ(stream_->Deliver(0, Tokens{7}, {}, kFirstToken), Delivery::kFlush);
  stream_->Flush();
  stream_->OnWriteDone(false);
  EXPECT_EQ(stream_->Deliver(1, Tokens{7}, {}, kFirstToken), Delivery::kTaken);
  EXPECT_TRUE(stream_->End(absl::OkStatus(), std::nullopt));
}

// --- over a call on the loopback ---

class OneClientService final : public CallService {
 public:
  OneClientService() {
    Add<v1::GenerateRequest, v1::GenerateResponse>(
        "/bfio.v1.Inference/Generate",
        [this](grpc::CallbackServerContext* context) { return Generate(context); });
  }

  std::shared_ptr<ClientStream> Take() {
    MutexLock lock(&mutex_);
    const auto there = [&] { return stream_ != nullptr; };
    mutex_.Await(absl::Condition(&there));
    return std::move(stream_);
  }
  // Waits for the call's cancellation; returns what the router would be told.
  bool AwaitCancel() {
    MutexLock lock(&mutex_);
    const auto there = [&] { return cancelled_.has_value(); };
    mutex_.Await(absl::Condition(&there));
    return *cancelled_;
  }

 private:
  ClientStream* Generate(grpc::CallbackServerContext* context) {
    ClientStream::Options options;
    options.id = 1;
    options.on_request = [this](const std::shared_ptr<ClientStream>& stream, const v1::GenerateRequest&) {
      stream->SetRequestId("request");
      MutexLock lock(&mutex_);
      stream_ = stream;
      return absl::OkStatus();
    };
    options.on_cancel = [this](bool timed_out) {
      MutexLock lock(&mutex_);
      cancelled_ = timed_out;
    };
    const auto stream = ClientStream::Create(context, std::move(options));
    stream->Begin(absl::OkStatus(), &messages_);
    return stream.get();
  }

  FirstMessages messages_;
  Mutex mutex_;
  std::shared_ptr<ClientStream> stream_ ABSL_GUARDED_BY(mutex_);
  std::optional<bool> cancelled_ ABSL_GUARDED_BY(mutex_);
};

class ClientCall : public ::testing::Test {
 protected:
  // Starts a call and waits until the service has it.
  void Begin() {
    reader_ = v1::Inference::NewStub(server_.channel())->Generate(&context_, v1::GenerateRequest());
    stream_ = service_.Take();
  }
  v1::GenerateResponse Read() {
    v1::GenerateResponse response;
    EXPECT_TRUE(reader_->Read(&response));
    EXPECT_EQ(response.request_id(), "request");
    return response;
  }
  // Delivers so much that the write blocks until the client reads.
  void Block() {
    const Tokens tokens(testing::LoopbackServer::kBig / 4, 1 << 30);
    ASSERT_EQ(stream_->Deliver(0, tokens, {}, kFirstToken), Delivery::kFlush);
    stream_->Flush();
    next_ = static_cast<uint32_t>(tokens.size());
  }
  void ExpectEnd(grpc::StatusCode code) {
    v1::GenerateResponse response;
    EXPECT_FALSE(reader_->Read(&response));
    EXPECT_EQ(reader_->Finish().error_code(), code);
  }
  static Tokens TokensOf(const v1::GenerateResponse& response) {
    return {response.token_ids().begin(), response.token_ids().end()};
  }

  OneClientService service_;
  testing::LoopbackServer server_{&service_};
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  std::shared_ptr<ClientStream> stream_;
  uint32_t next_ = 0;
};

TEST_F(ClientCall, TokensThatComeDuringAWriteAreWrittenTogetherWithTheFinish) {
  Begin();
  Block();
  EXPECT_EQ(stream_->Deliver(next_, Tokens{5}, {}, kFirstToken), Delivery::kTaken);
  EXPECT_EQ(stream_->Deliver(next_ + 1, Tokens{6}, {}, kFirstToken), Delivery::kTaken);
  Finish finish;
  finish.reason = FinishReason::kLength;
  EXPECT_FALSE(stream_->End(absl::OkStatus(), finish));
  const v1::GenerateResponse first = Read();
  EXPECT_EQ(first.first_index(), 0u);
  EXPECT_FALSE(first.has_finish());
  const v1::GenerateResponse second = Read();
  EXPECT_EQ(second.first_index(), next_);
  EXPECT_EQ(TokensOf(second), (Tokens{5, 6}));
  EXPECT_EQ(second.finish().reason(), v1::FINISH_REASON_LENGTH);
  ExpectEnd(grpc::StatusCode::OK);
}

TEST_F(ClientCall, LogprobsComeWithTheirTokens) {
  Begin();
  stream_->CatchUp(3, Tokens{8}, Logprobs{{-1}, {{8, -1}}}.view());
  EXPECT_EQ(stream_->Deliver(4, Tokens{9}, Logprobs{{-2}, {{1, -0.5}}}.view(), kFirstToken),
            Delivery::kFlush);
  stream_->Flush();
  const v1::GenerateResponse response = Read();
  EXPECT_EQ(TokensOf(response), (Tokens{8, 9}));
  EXPECT_THAT(response.logprobs().token_logprobs(), ::testing::ElementsAre(-1, -2));
  EXPECT_THAT(response.logprobs().top_token_ids(), ::testing::ElementsAre(8, 1));
  EXPECT_THAT(response.logprobs().top_logprobs(), ::testing::ElementsAre(-1, -0.5));
  // The first write may still be in progress.
  if (stream_->Deliver(5, Tokens{7}, {}, kFirstToken) == Delivery::kFlush) stream_->Flush();
  EXPECT_FALSE(Read().has_logprobs());
  if (stream_->End(absl::OkStatus(), Finish())) stream_->Flush();
  Read();
  ExpectEnd(grpc::StatusCode::OK);
}

TEST_F(ClientCall, AFinishWithoutTokensSaysHowManyThereWere) {
  Begin();
  Finish finish;
  finish.reason = FinishReason::kAbort;
  finish.completion_tokens = 9;
  EXPECT_TRUE(stream_->End(absl::OkStatus(), finish));
  stream_->Flush();
  const v1::GenerateResponse last = Read();
  EXPECT_EQ(last.finish().reason(), v1::FINISH_REASON_ABORT);
  EXPECT_FALSE(last.finish().timing().has_time_to_first_token() || last.finish().has_dp_rank());
  EXPECT_EQ(last.first_index(), 9u);
  EXPECT_EQ(last.token_ids_size(), 0);
  ExpectEnd(grpc::StatusCode::OK);
}

TEST_F(ClientCall, AnErrorComesAfterTheTokensAndWithoutAFinish) {
  Begin();
  stream_->CatchUp(3, Tokens{8, 9}, {});
  EXPECT_TRUE(stream_->End(absl::UnavailableError("lost"), Finish()));
  stream_->Flush();
  const v1::GenerateResponse response = Read();
  EXPECT_EQ(response.first_index(), 3u);
  EXPECT_EQ(TokensOf(response), (Tokens{8, 9}));
  EXPECT_FALSE(response.has_finish());
  ExpectEnd(grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ClientCall, ACancelledRequestsTokensAreNotWritten) {
  Begin();
  EXPECT_EQ(stream_->Deliver(0, Tokens{7}, {}, kFirstToken), Delivery::kFlush);
  EXPECT_FALSE(stream_->End(absl::CancelledError(), std::nullopt));
  stream_->Flush();
  ExpectEnd(grpc::StatusCode::CANCELLED);
}

TEST_F(ClientCall, ACallThatHasNotEndedIsNotBrokenOff) {
  Begin();
  Block();
  stream_->BreakOff();
  EXPECT_FALSE(stream_->End(absl::OkStatus(), std::nullopt));
  EXPECT_EQ(Read().first_index(), 0u);
  ExpectEnd(grpc::StatusCode::OK);
}

TEST_F(ClientCall, AnEndedCallThatWaitsForItsClientIsBrokenOff) {
  Begin();
  Block();
  EXPECT_FALSE(stream_->End(absl::OkStatus(), std::nullopt));
  stream_->BreakOff();
  ExpectEnd(grpc::StatusCode::CANCELLED);
  EXPECT_FALSE(service_.AwaitCancel());
}

TEST_F(ClientCall, ADisconnectReachesTheRouterWhichEndsTheStream) {
  Begin();
  context_.TryCancel();
  EXPECT_FALSE(service_.AwaitCancel()) << "no deadline has passed";
  EXPECT_TRUE(stream_->End(absl::CancelledError(), std::nullopt)) << "that is left to the router";
  stream_->Flush();
  ExpectEnd(grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace bfio::router
