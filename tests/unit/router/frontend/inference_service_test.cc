// The client API in front of a fake router state.
#include "router/frontend/inference_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/net/status.h"
#include "tests/testing/latch.h"
#include "tests/testing/loopback_server.h"
#include "tests/unit/router/frontend/fake_handler.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Delivery = TokenSink::Delivery;

class InferenceServiceTest : public ::testing::Test {
 protected:
  static v1::GenerateRequest Request() {
    v1::GenerateRequest request;
    request.set_prompt_length(3);
    request.set_max_new_tokens(2);
    return request;
  }
  // Makes a call; returns all messages and the status.
  absl::Status Generate(const v1::GenerateRequest& request, std::vector<v1::GenerateResponse>& messages) {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    messages.clear();
    for (v1::GenerateResponse message; reader->Read(&message);) messages.push_back(message);
    return FromGrpcStatus(reader->Finish());
  }

  FakeHandler handler_;
  Authenticator authenticator_{"client API", nullptr};
  FirstMessages messages_;
  InferenceService service_{
      &handler_,
      &authenticator_,
      &messages_,
      RequestLimits(),
      StreamLimits(),
      {[] { return "drawn"; },
       ResumeTickets(*TicketKeys::Parse(std::string(32, 'k'), "keys"), absl::Seconds(30))}};
  testing::LoopbackServer server_{&service_};
  const std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(server_.channel());
  grpc::ClientContext context_;
};

TEST_F(InferenceServiceTest, TokensAndFinishReachTheClient) {
  handler_.on_submit = [](core::RequestId id, std::shared_ptr<TokenSink> sink) {
    EXPECT_EQ(sink->id(), id);
    const std::vector<uint32_t> tokens = {7, 8};
    EXPECT_EQ(sink->Deliver(0, tokens, {}, absl::UnixEpoch()), TokenSink::Delivery::kFlush);
    const Finish finish = {.reason = FinishReason::kStop,
                           .prompt_tokens = 3,
                           .completion_tokens = 2,
                           .queue = absl::Milliseconds(1500),
                           .time_to_first_token = absl::Seconds(2),
                           .end_to_end = absl::Seconds(3),
                           .wait_steps = 4,
                           .rank = 5};
    EXPECT_FALSE(sink->End(absl::OkStatus(), finish)) << "a flush is asked for already";
    EXPECT_FALSE(sink->End(absl::InternalError("late"), std::nullopt));
    sink->Flush();
    return absl::OkStatus();
  };
  std::vector<v1::GenerateResponse> messages;
  ASSERT_TRUE(Generate(Request(), messages).ok());
  ASSERT_EQ(messages.size(), 1u) << "what is there at once goes in one message";
  // The client gave no id; the request is not resumable.
  EXPECT_EQ(messages[0].ShortDebugString(),
            "request_id: \"drawn\" token_ids: 7 token_ids: 8 finish { reason: FINISH_REASON_STOP "
            "usage { prompt_tokens: 3 completion_tokens: 2 } timing { queue { seconds: 1 nanos: 500000000 } "
            "time_to_first_token { seconds: 2 } end_to_end { seconds: 3 } wait_steps: 4 } dp_rank: 5 }");
  ASSERT_EQ(handler_.submitted().size(), 1u);
  EXPECT_EQ(handler_.submitted()[0].request_id, "drawn");
  EXPECT_EQ(handler_.submitted()[0].prompt_tokens, 3u);
}

TEST_F(InferenceServiceTest, ARefusalCarriesItsRetryDelay) {
  v1::GenerateRequest request = Request();
  request.set_max_new_tokens(0);
  std::vector<v1::GenerateResponse> messages;
  EXPECT_EQ(Generate(request, messages),
            absl::InvalidArgumentError("max_new_tokens is 0; must be within 1..65536"));
  EXPECT_THAT(handler_.submitted(), IsEmpty());
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>&) {
    absl::Status full = absl::ResourceExhaustedError("full");
    SetRetryDelay(full, absl::Milliseconds(500));
    return full;
  };
  const absl::Status status = Generate(Request(), messages);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "full");
  EXPECT_EQ(GetRetryDelay(status), absl::Milliseconds(500));
  EXPECT_THAT(messages, IsEmpty());
}

// --- one client's stream, of which the test has the router's end ---

class ClientStreamTest : public InferenceServiceTest {
 protected:
  // Begins a call.
  void Begin() {
    handler_.on_submit = [this](core::RequestId, std::shared_ptr<TokenSink> given) {
      sink_ = std::move(given);
      begun_.count_down();
      return absl::OkStatus();
    };
    reader_ = stub_->Generate(&context_, Request());
    begun_.wait();
  }
  Delivery Deliver(const std::vector<uint32_t>& tokens, absl::Time now = absl::UnixEpoch()) {
    const Delivery delivery = sink_->Deliver(next_, tokens, {}, now);
    if (delivery != Delivery::kTooSlow) next_ += static_cast<uint32_t>(tokens.size());
    if (delivery == Delivery::kFlush) sink_->Flush();
    return delivery;
  }
  // Delivers so much that the write blocks until the client reads.
  void Block() {
    EXPECT_EQ(Deliver(std::vector<uint32_t>(testing::LoopbackServer::kBig / 4, 1 << 30)), Delivery::kFlush);
  }
  std::string Read() {
    v1::GenerateResponse response;
    EXPECT_TRUE(reader_->Read(&response));
    if (response.token_ids_size() > 100) response.clear_token_ids();
    return response.ShortDebugString();
  }
  void ExpectEnd(grpc::StatusCode code) {
    v1::GenerateResponse response;
    EXPECT_FALSE(reader_->Read(&response));
    EXPECT_EQ(reader_->Finish().error_code(), code);
  }

  testing::Latch begun_{1};
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  std::shared_ptr<TokenSink> sink_;
  uint32_t next_ = 0;
};

TEST_F(ClientStreamTest, TokensThatComeDuringAWriteAreWrittenTogetherWithTheFinish) {
  Begin();
  Block();
  for (const uint32_t token : {5u, 6u}) EXPECT_EQ(Deliver({token}), Delivery::kTaken);
  sink_->BreakOff();  // only calls that have ended are broken off
  EXPECT_FALSE(sink_->End(absl::OkStatus(), Finish{.reason = FinishReason::kLength}));
  EXPECT_EQ(Read(), "request_id: \"drawn\"");
  EXPECT_EQ(Read(), absl::StrCat("request_id: \"drawn\" first_index: ", next_ - 2,
                                 " token_ids: 5 token_ids: 6 finish { reason: FINISH_REASON_LENGTH usage { } "
                                 "timing { queue { } end_to_end { } } }"));
  ExpectEnd(grpc::StatusCode::OK);
}

TEST_F(ClientStreamTest, ABufferfulMayWaitBehindAWriteForAWhile) {
  Begin();
  Block();
  const absl::Time waits = absl::UnixEpoch() + absl::Hours(1), late = waits + StreamLimits().timeout;
  EXPECT_EQ(Deliver({7}, waits), Delivery::kTaken);
  EXPECT_EQ(Deliver({7}, late), Delivery::kTaken);
  EXPECT_EQ(Deliver({7}, late + absl::Milliseconds(1)), Delivery::kTooSlow);
  EXPECT_EQ(Deliver(std::vector<uint32_t>(StreamLimits().buffer_tokens - 2, 7), late), Delivery::kTaken);
  EXPECT_EQ(Deliver({7}, late), Delivery::kTooSlow);
  EXPECT_FALSE(sink_->End(absl::OkStatus(), std::nullopt));
  EXPECT_FALSE(sink_->End(absl::InternalError("late"), std::nullopt));
  EXPECT_EQ(Deliver({7}, waits), Delivery::kTaken) << "an ended stream takes nothing";
  sink_->BreakOff();
  ExpectEnd(grpc::StatusCode::CANCELLED);
}

TEST_F(ClientStreamTest, WhatAResumedClientHasMissedComesFirst) {
  Begin();
  sink_->CatchUp(3, std::vector<uint32_t>{8}, Logprobs{{-1}, {{8, -1}}}.view());
  EXPECT_EQ(
      sink_->Deliver(4, std::vector<uint32_t>{9}, Logprobs{{-2}, {{1, -0.5}}}.view(), absl::UnixEpoch()),
      Delivery::kFlush);
  EXPECT_FALSE(sink_->End(absl::UnavailableError("lost"), Finish()));
  sink_->Flush();
  EXPECT_EQ(Read(),
            "request_id: \"drawn\" first_index: 3 token_ids: 8 token_ids: 9 "
            "logprobs { token_logprobs: -1 token_logprobs: -2 top_token_ids: 8 top_token_ids: 1 "
            "top_logprobs: -1 top_logprobs: -0.5 }")
      << "an error comes after the tokens and without a finish";
  ExpectEnd(grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ClientStreamTest, AFinishWithoutTokensSaysHowManyThereWere) {
  Begin();
  End(*sink_, absl::OkStatus(), Finish{.reason = FinishReason::kAbort, .completion_tokens = 9});
  EXPECT_EQ(Read(),
            "request_id: \"drawn\" first_index: 9 finish { reason: FINISH_REASON_ABORT "
            "usage { completion_tokens: 9 } timing { queue { } end_to_end { } } }");
  ExpectEnd(grpc::StatusCode::OK);
}

TEST_F(ClientStreamTest, ACancelledRequestsTokensAreNotWritten) {
  Begin();
  EXPECT_EQ(sink_->Deliver(0, std::vector<uint32_t>{7}, {}, absl::UnixEpoch()), Delivery::kFlush);
  EXPECT_FALSE(sink_->End(absl::CancelledError(), std::nullopt));
  sink_->Flush();
  ExpectEnd(grpc::StatusCode::CANCELLED);
}

TEST_F(ClientStreamTest, AClientThatLeavesIsCancelled) {
  Begin();
  context_.TryCancel();
  EXPECT_THAT(handler_.AwaitCancels(1), ElementsAre(Pair(41, false))) << "no deadline has passed";
  EXPECT_TRUE(sink_->End(absl::CancelledError(), std::nullopt)) << "that is left to the router";
  sink_->Flush();
  ExpectEnd(grpc::StatusCode::CANCELLED);
}

TEST_F(InferenceServiceTest, APassedDeadlineIsReported) {
  Mutex mutex;
  std::vector<std::shared_ptr<TokenSink>> sinks;
  handler_.on_submit = [&](core::RequestId, std::shared_ptr<TokenSink> given) {
    MutexLock lock(&mutex);
    sinks.push_back(std::move(given));
    return absl::OkStatus();
  };
  // The client sees the deadline pass whether or not the call has reached the service by then. If it had not,
  // or the call took longer to arrive than the service allows for, try again with more time.
  std::vector<FakeHandler::Cancelled> cancelled;
  for (absl::Duration patience = absl::Milliseconds(100);
       (cancelled.empty() || !cancelled.back().second) && patience < absl::Minutes(2); patience *= 2) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(patience));
    const auto reader = stub_->Generate(&context, Request());
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    cancelled = handler_.AwaitCancels(cancelled.size() + 1, patience);
  }
  ASSERT_FALSE(cancelled.empty());
  EXPECT_TRUE(cancelled.back().second);
  MutexLock lock(&mutex);
  for (const std::shared_ptr<TokenSink>& sink : sinks) End(*sink, absl::CancelledError(), std::nullopt);
}

TEST_F(InferenceServiceTest, TheFirstMessageOfAResumableStreamCarriesATicket) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    sink->SetModel("5eed");
    Deliver(*sink, {7});
    Finish finish;
    finish.completion_tokens = 1;
    End(*sink, absl::OkStatus(), finish);
    return absl::OkStatus();
  };
  v1::GenerateRequest request = Request();
  request.set_request_id("r");
  request.set_resumable(true);
  std::vector<v1::GenerateResponse> messages;
  ASSERT_TRUE(Generate(request, messages).ok());
  const std::string ticket = messages[0].resume_ticket();
  EXPECT_EQ(ticket.size(), TicketKeys::kTicketBytes + 4) << "with its model";
  for (size_t i = 1; i < messages.size(); ++i) EXPECT_EQ(messages[i].resume_ticket(), "");
  EXPECT_FALSE(handler_.submitted().back().resume_proven);
  // A valid ticket proves the request to the state, and the next stream gets a ticket again.
  const auto resume = [&](const std::string& shown, uint32_t max_new_tokens) {
    request.set_resume_from_index(1);
    request.set_resume_ticket(shown);
    request.set_max_new_tokens(max_new_tokens);
    EXPECT_TRUE(Generate(request, messages).ok());
    return handler_.submitted().back().resume_proven;
  };
  EXPECT_TRUE(resume(ticket, 2));
  EXPECT_EQ(handler_.submitted().back().model, "5eed") << "which it goes on with";
  EXPECT_EQ(messages[0].resume_ticket().size(), TicketKeys::kTicketBytes + 4);
  EXPECT_FALSE(resume(ticket, 3)) << "it is for another request";
  EXPECT_EQ(handler_.submitted().back().model, "");
  EXPECT_EQ(messages[0].resume_ticket(), "");
  EXPECT_FALSE(resume("", 2));
}

TEST_F(InferenceServiceTest, AnAbortNamesRequestAndSecret) {
  v1::AbortRequest request;
  request.set_request_id("r");
  request.set_resume_token("secret");
  request.set_tenant("acme");
  v1::AbortResponse response;
  grpc::ClientContext again;
  ASSERT_TRUE(stub_->Abort(&context_, request, &response).ok());
  EXPECT_TRUE(response.found());
  const auto aborted = handler_.aborted().at(0);
  EXPECT_EQ(std::tie(aborted.request_id, aborted.resume_token, aborted.tenant),
            std::tuple("r", "secret", "acme"))
      << "callers are not authenticated";
  handler_.refuse = absl::UnavailableError("shutting down");
  EXPECT_EQ(FromGrpcStatus(stub_->Abort(&again, request, &response)), handler_.refuse);
}

TEST_F(InferenceServiceTest, LoadsAreThoseOfTheRanks) {
  handler_.loads.timestamp = absl::FromUnixMillis(1'500);
  handler_.loads.version = "1.2.3";
  handler_.loads.ranks = 2;
  handler_.loads.loads = {{.rank = 1,
                           .running_requests = 3,
                           .waiting_requests = 4,
                           .used_tokens = 50,
                           .max_tokens = 200,
                           .tokens_per_second = 12.5,
                           .slots = 6}};
  v1::GetLoadsResponse response;
  ASSERT_TRUE(stub_->GetLoads(&context_, v1::GetLoadsRequest(), &response).ok());
  EXPECT_EQ(
      response.ShortDebugString(),
      "timestamp { seconds: 1 nanos: 500000000 } version: \"1.2.3\" dp_rank_count: 2 loads { dp_rank: 1 "
      "num_running_reqs: 3 num_waiting_reqs: 4 num_total_reqs: 7 num_used_tokens: 50 "
      "max_total_num_tokens: 200 token_usage: 0.25 gen_throughput: 12.5 utilization: 0.5 "
      "max_running_requests: 6 }");
  grpc::ClientContext again;
  v1::GetLoadsRequest one;
  one.set_dp_rank(0);
  EXPECT_EQ(stub_->GetLoads(&again, one, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace bfio::router
