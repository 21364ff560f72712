// The client API in front of a fake router state.
#include "router/frontend/inference_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/net/status.h"
#include "tests/testing/loopback_server.h"
#include "tests/unit/router/frontend/fake_handler.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
    const auto reader = stub_->Generate(&context_, request);
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

// A client that begins a call and sends no request.
TEST_F(InferenceServiceTest, ACallWithoutARequestEnds) {
  FirstMessages messages({.patience = absl::Milliseconds(20)});
  InferenceService impatient(&handler_, &authenticator_, &messages, RequestLimits(), StreamLimits());
  testing::LoopbackServer server(&impatient);
  grpc::GenericStub stub(server.channel());
  for (const char* method : {"/bfio.v1.Inference/Generate", "/bfio.v1.Inference/GetLoads"}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, method, &queue);
    const auto next = [&] {
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
      return ok;
    };
    call->StartCall(nullptr);
    ASSERT_TRUE(next());
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    EXPECT_EQ(FromGrpcStatus(status), absl::DeadlineExceededError("the first message did not arrive in time"))
        << method;
  }
  EXPECT_EQ(messages.counts().too_late, 2u);
  EXPECT_TRUE(handler_.submitted.empty());
}

TEST_F(InferenceServiceTest, TokensAndFinishReachTheClient) {
  handler_.on_submit = [](core::RequestId id, std::shared_ptr<TokenSink> sink) {
    EXPECT_EQ(sink->id(), id);
    EXPECT_EQ(sink->traceparent(), "");
    const std::vector<uint32_t> tokens = {7, 8};
    EXPECT_EQ(sink->Deliver(0, tokens, {}, absl::UnixEpoch()), TokenSink::Delivery::kFlush);
    Finish finish;
    finish.reason = FinishReason::kStop;
    finish.prompt_tokens = 3;
    finish.completion_tokens = 2;
    finish.queue = absl::Milliseconds(1500);
    finish.time_to_first_token = absl::Seconds(2);
    finish.end_to_end = absl::Seconds(3);
    finish.wait_steps = 4;
    finish.rank = 5;
    EXPECT_FALSE(sink->End(absl::OkStatus(), finish)) << "a flush is asked for already";
    EXPECT_FALSE(sink->End(absl::InternalError("late"), std::nullopt));
    sink->Flush();
    return absl::OkStatus();
  };
  std::vector<v1::GenerateResponse> messages;
  ASSERT_TRUE(Generate(Request(), messages).ok());
  ASSERT_EQ(messages.size(), 1u) << "what is there at once goes in one message";
  EXPECT_EQ(messages[0].request_id(), "drawn") << "the client gave none";
  EXPECT_EQ(messages[0].resume_ticket(), "") << "it is not resumable";
  EXPECT_EQ(messages[0].first_index(), 0u);
  EXPECT_THAT(messages[0].token_ids(), ElementsAre(7, 8));
  const v1::Finish& finish = messages[0].finish();
  EXPECT_EQ(finish.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(finish.usage().prompt_tokens(), 3u);
  EXPECT_EQ(finish.usage().completion_tokens(), 2u);
  EXPECT_EQ(finish.timing().queue().seconds(), 1);
  EXPECT_EQ(finish.timing().queue().nanos(), 500'000'000);
  EXPECT_EQ(finish.timing().time_to_first_token().seconds(), 2);
  EXPECT_EQ(finish.timing().end_to_end().seconds(), 3);
  EXPECT_EQ(finish.timing().wait_steps(), 4u);
  EXPECT_EQ(finish.dp_rank(), 5u);
  ASSERT_EQ(handler_.submitted.size(), 1u);
  EXPECT_EQ(handler_.submitted[0].request_id, "drawn");
  EXPECT_EQ(handler_.submitted[0].prompt_tokens, 3u);
}

TEST_F(InferenceServiceTest, ARefusalCarriesItsRetryDelay) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>&) {
    absl::Status full = absl::ResourceExhaustedError("full");
    SetRetryDelay(full, absl::Milliseconds(500));
    return full;
  };
  std::vector<v1::GenerateResponse> messages;
  const absl::Status status = Generate(Request(), messages);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "full");
  EXPECT_EQ(GetRetryDelay(status), absl::Milliseconds(500));
  EXPECT_THAT(messages, IsEmpty());
}

TEST_F(InferenceServiceTest, FieldsOutOfRangeAreRefusedBeforeTheHandler) {
  v1::GenerateRequest request = Request();
  request.set_max_new_tokens(0);
  std::vector<v1::GenerateResponse> messages;
  EXPECT_EQ(Generate(request, messages),
            absl::InvalidArgumentError("max_new_tokens is 0; must be within 1..65536"));
  EXPECT_THAT(handler_.submitted, IsEmpty());
}

TEST_F(InferenceServiceTest, AClientThatLeavesIsCancelled) {
  std::shared_ptr<TokenSink> sink;
  handler_.on_submit = [&](core::RequestId, std::shared_ptr<TokenSink> given) {
    sink = std::move(given);
    Deliver(*sink, {7});
    return absl::OkStatus();
  };
  const auto reader = stub_->Generate(&context_, Request());
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  context_.TryCancel();
  EXPECT_EQ(handler_.AwaitCancel(), std::make_optional(std::pair<uint64_t, bool>{41, false}));
  End(*sink, absl::CancelledError(), std::nullopt);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InferenceServiceTest, APassedDeadlineIsReported) {
  // The client sees the deadline pass whether or not the call has reached the service by then.
  Mutex mutex;
  std::vector<std::shared_ptr<TokenSink>> sinks;
  bool over = false;
  handler_.on_submit = [&](core::RequestId, std::shared_ptr<TokenSink> given) {
    MutexLock lock(&mutex);
    if (over) return absl::CancelledError("over");
    sinks.push_back(std::move(given));
    return absl::OkStatus();
  };
  // If the deadline passed before the service had the call, or the call took longer to arrive than the
  // service allows for, try again with more time.
  std::optional<std::pair<uint64_t, bool>> cancelled;
  for (absl::Duration patience = absl::Milliseconds(100);
       !(cancelled && cancelled->second) && patience < absl::Minutes(2); patience *= 2) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(patience));
    const auto reader = stub_->Generate(&context, Request());
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    cancelled = handler_.TakeCancel(patience);
  }
  ASSERT_TRUE(cancelled.has_value());
  EXPECT_TRUE(cancelled->second);
  {
    MutexLock lock(&mutex);
    over = true;
  }
  for (const std::shared_ptr<TokenSink>& sink : sinks) End(*sink, absl::CancelledError(), std::nullopt);
}

TEST_F(InferenceServiceTest, ATracedCallHasItsTraceparent) {
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  std::string seen;
  handler_.on_submit = [&](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    seen = sink->traceparent();
    return absl::UnavailableError("enough");
  };
  context_.AddMetadata("traceparent", trace);
  std::vector<v1::GenerateResponse> messages;
  EXPECT_EQ(Generate(Request(), messages).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(seen, trace);
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
  EXPECT_FALSE(handler_.submitted.back().resume_proven);
  // A valid ticket proves the request to the state, and the next stream gets a ticket again.
  const auto resume = [&](const std::string& shown, uint32_t max_new_tokens) {
    request.set_resume_from_index(1);
    request.set_resume_ticket(shown);
    request.set_max_new_tokens(max_new_tokens);
    messages.clear();
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    for (v1::GenerateResponse message; reader->Read(&message);) messages.push_back(message);
    EXPECT_TRUE(reader->Finish().ok());
    return handler_.submitted.back().resume_proven;
  };
  EXPECT_TRUE(resume(ticket, 2));
  EXPECT_EQ(handler_.submitted.back().model, "5eed") << "which it goes on with";
  EXPECT_EQ(messages[0].resume_ticket().size(), TicketKeys::kTicketBytes + 4);
  EXPECT_FALSE(resume(ticket, 3)) << "it is for another request";
  EXPECT_EQ(handler_.submitted.back().model, "");
  EXPECT_EQ(messages[0].resume_ticket(), "");
  EXPECT_FALSE(resume("", 2));
}

TEST_F(InferenceServiceTest, AnAbortNamesRequestAndSecret) {
  v1::AbortRequest request;
  request.set_request_id("r");
  request.set_resume_token("secret");
  request.set_tenant("acme");
  v1::AbortResponse response;
  ASSERT_TRUE(stub_->Abort(&context_, request, &response).ok());
  EXPECT_TRUE(response.found());
  EXPECT_EQ(handler_.aborted->request_id, "r");
  EXPECT_EQ(handler_.aborted->resume_token, "secret");
  EXPECT_EQ(handler_.aborted->tenant, "acme") << "callers are not authenticated";
  handler_.refuse = absl::UnavailableError("shutting down");
  grpc::ClientContext again;
  EXPECT_EQ(FromGrpcStatus(stub_->Abort(&again, request, &response)), handler_.refuse);
}

TEST_F(InferenceServiceTest, LoadsAreThoseOfTheRanks) {
  handler_.loads.timestamp = absl::FromUnixMillis(1'500);
  handler_.loads.version = "1.2.3";
  handler_.loads.ranks = 2;
  RankLoad load;
  load.rank = 1;
  load.running_requests = 3;
  load.waiting_requests = 4;
  load.used_tokens = 50;
  load.max_tokens = 200;
  load.tokens_per_second = 12.5;
  load.slots = 6;
  handler_.loads.loads.push_back(load);
  v1::GetLoadsResponse response;
  ASSERT_TRUE(stub_->GetLoads(&context_, v1::GetLoadsRequest(), &response).ok());
  EXPECT_EQ(response.timestamp().seconds(), 1);
  EXPECT_EQ(response.timestamp().nanos(), 500'000'000);
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.dp_rank_count(), 2u);
  ASSERT_EQ(response.loads_size(), 1);
  const v1::SchedulerLoad& rank = response.loads(0);
  EXPECT_EQ(rank.dp_rank(), 1u);
  EXPECT_EQ(rank.num_running_reqs(), 3u);
  EXPECT_EQ(rank.num_waiting_reqs(), 4u);
  EXPECT_EQ(rank.num_total_reqs(), 7u);
  EXPECT_EQ(rank.num_used_tokens(), 50u);
  EXPECT_EQ(rank.max_total_num_tokens(), 200u);
  EXPECT_EQ(rank.token_usage(), 0.25);
  EXPECT_EQ(rank.gen_throughput(), 12.5);
  EXPECT_EQ(rank.utilization(), 0.5);
  EXPECT_EQ(rank.max_running_requests(), 6u);
  grpc::ClientContext again;
  v1::GetLoadsRequest one;
  one.set_dp_rank(0);
  EXPECT_EQ(stub_->GetLoads(&again, one, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace bfio::router
