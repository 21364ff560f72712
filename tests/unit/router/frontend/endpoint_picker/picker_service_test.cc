// The picker behind real gRPC streams, in front of a fake router state.
#include "router/frontend/endpoint_picker/picker_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "envoy/ext_proc.grpc.pb.h"
#include "router/requests/placed_request.h"
#include "tests/testing/latch.h"
#include "tests/testing/loopback_server.h"
#include "tests/unit/router/frontend/endpoint_picker/ext_proc_messages.h"
#include "tests/unit/router/frontend/fake_handler.h"

namespace bfio::router::picker {
namespace {

namespace pb = bfio::testing::ext_proc;
using bfio::testing::RequestBody;
using bfio::testing::RequestHeaders;
using bfio::testing::ResponseHeaders;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class PickerServiceTest : public ::testing::Test {
 protected:
  PickerServiceTest() {
    handler_.set_serving({true, 1000});
    handler_.on_submit = [this](core::RequestId, std::shared_ptr<TokenSink> sink) {
      sink_ = std::move(sink);
      submitted_.count_down();
      return absl::OkStatus();
    };
  }
  ~PickerServiceTest() override { context_.TryCancel(); }

  void Ask(std::string body, testing::HeaderList headers = {{":path", "/v1/completions"},
                                                            {"x-gateway-inference-fairness-id", "acme"},
                                                            {"x-request-id", "r1"}}) {
    stream_ = stub_->Process(&context_);
    stream_->Write(RequestHeaders(pb::BUFFERED, pb::NONE, headers));
    ASSERT_TRUE(stream_->Read(&answer_));
    stream_->Write(RequestBody(std::move(body), true));
  }
  // Places the request, as the link does; what it is told at the end.
  void Place(const std::string& server = "10.0.0.1:8000") {
    submitted_.wait();
    const auto* const request =
        dynamic_cast<const PlacedRequest*>(handler_.submitted().back().passed.message.get());
    ASSERT_NE(request, nullptr);
    request->SendTo({server, std::nullopt}, [this](const absl::Status& end) {
      ends_.push_back(end.code());
      ended_.count_down();
    });
  }

  struct Call {
    Call(pb::ExternalProcessor::Stub& stub, const In& first) : stream(stub.Process(&context)) {
      stream->Write(first);
    }
    ~Call() { context.TryCancel(); }
    // Whether the picker waits for the body.
    bool Taken() { return stream->Read(&answer) && answer.has_request_headers(); }
    grpc::ClientContext context;
    Out answer;
    std::unique_ptr<grpc::ClientReaderWriter<In, Out>> stream;
  };

  // A request that Envoy permits to go there only.
  static In Within(const std::string& subset) {
    In headers = RequestHeaders(pb::NONE, pb::NONE, {{":path", "/v1/models"}}, true);
    (*(*headers.mutable_metadata_context()->mutable_filter_metadata())["envoy.lb.subset_hint"]
          .mutable_fields())["x-gateway-destination-endpoint-subset"]
        .set_string_value(subset);
    return headers;
  }

  FakeHandler handler_;
  std::shared_ptr<TokenSink> sink_;
  testing::Latch submitted_{1}, ended_{1};
  std::vector<absl::StatusCode> ends_;
  Authenticator authenticator_{"client API", nullptr};
  // Eight requests while they come, of which a tenant among others may send four.
  // A tenant may have four requests, and some bytes of bodies.
  const std::shared_ptr<Renderers> renderers_ = std::make_shared<Renderers>();
  PickerService service_{&handler_,
                         &authenticator_,
                         {.limits = {.name_prefixes = true},
                          .held_bytes = 8 * PickerService::kStreamBytes + 64,
                          .renderers = renderers_}};
  testing::LoopbackServer server_{&service_};
  const std::unique_ptr<pb::ExternalProcessor::Stub> stub_ =
      pb::ExternalProcessor::NewStub(server_.channel());
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<In, Out>> stream_;
  Out answer_;
};

TEST_F(PickerServiceTest, ARequestIsHeldUntilItHasAPlaceAndEndsWithItsStream) {
  Ask(R"({"prompt":"12345678","max_tokens":5,"n":2})");
  submitted_.wait();
  const ClientRequest request = handler_.submitted().back();
  EXPECT_EQ(request.tenant, "acme");
  EXPECT_THAT(request.request_id, HasSubstr("r1#"));
  EXPECT_EQ(request.prompt_tokens, 3u);
  EXPECT_EQ(request.max_new_tokens, 10u);
  EXPECT_EQ(service_.streams(), 1);
  Place();
  ASSERT_TRUE(stream_->Read(&answer_));
  EXPECT_EQ(answer_.request_body().response().header_mutation().set_headers(0).header().raw_value(),
            "10.0.0.1:8000");
  stream_->Write(ResponseHeaders(200));
  ASSERT_TRUE(stream_->Read(&answer_));
  EXPECT_FALSE(ended_.try_wait());
  stream_->WritesDone();
  EXPECT_TRUE(stream_->Finish().ok());
  ended_.wait();
  EXPECT_THAT(ends_, ElementsAre(absl::StatusCode::kOk));
}

TEST_F(PickerServiceTest, AnEngineSaysWhichTokensAPromptHas) {
  PlacedRequest::Call asked;
  absl::StatusOr<RenderedPrompt> answer = RenderedPrompt{std::vector<uint32_t>(130, 7)};
  Mutex mutex;
  Renderers::Done done;
  renderers_->Add(this, [&](const PlacedRequest::Call& call, Renderers::Done told) {
    MutexLock lock(&mutex);
    asked = call;
    done = std::move(told);
  });
  const auto request_for = [&](const std::string& body, const std::string& path = "/v1/completions") {
    const size_t before = handler_.submitted().size();
    grpc::ClientContext context;
    const auto stream = stub_->Process(&context);
    stream->Write(RequestHeaders(pb::BUFFERED, pb::NONE, {{":path", path}}));
    Out first;
    EXPECT_TRUE(stream->Read(&first));
    stream->Write(RequestBody(body, true));
    while (handler_.submitted().size() == before) {
      absl::SleepFor(absl::Milliseconds(1));
      Renderers::Done asked_for;
      {
        MutexLock lock(&mutex);
        asked_for = std::exchange(done, nullptr);
      }
      if (asked_for != nullptr) std::move(asked_for)(answer);
    }
    context.TryCancel();
    return handler_.submitted().back();
  };
  const std::string body = R"({"prompt":")" + std::string(400, 'x') + R"(","max_tokens":5})";
  const ClientRequest exact = request_for(body);
  EXPECT_EQ(asked.body, body);
  EXPECT_EQ(exact.prompt_tokens, 130u);
  EXPECT_EQ(exact.max_new_tokens, 5u);
  EXPECT_EQ(*exact.prefix, *core::NamePrefixBlocks(answer->tokens));
  answer->has_media = true;
  EXPECT_EQ(request_for(body).prefix, nullptr) << "images may differ where the tokens do not";
  // By the text, where that is not known, and where the prompt is tokens or on the server.
  answer = absl::FailedPreconditionError("it renders none");
  const ClientRequest by_text = request_for(body);
  EXPECT_EQ(by_text.prompt_tokens, 101u);
  EXPECT_NE(*by_text.prefix, *exact.prefix);
  asked = {};
  EXPECT_EQ(request_for(R"({"prompt":[1,2,3]})").prompt_tokens, 3u);
  EXPECT_EQ(request_for(R"({"input":"1234"})", "/v1/responses").prompt_tokens, 2u);
  EXPECT_EQ(asked.path, "");
  renderers_->Remove(this);
}

// So a response does not depend on the router.
TEST_F(PickerServiceTest, AnObserverTellsTheEndOfARequestWhoseStreamIsOver) {
  const testing::HeaderList headers = {{":path", "/v1/completions"}, {"x-request-id", "r1"}};
  grpc::ClientContext watching, another;
  auto observer = stub_->Process(&watching), gone = stub_->Process(&another);
  for (auto* const stream : {&gone, &observer}) {
    In first = RequestHeaders(pb::NONE, pb::NONE, headers);
    first.set_observability_mode(true);
    (*stream)->Write(first);
    while (service_.observers() < 1) absl::SleepFor(absl::Milliseconds(1));
    if (stream == &gone) another.TryCancel();
    while (stream == &gone && service_.observers() > 0) absl::SleepFor(absl::Milliseconds(1));
  }
  stream_ = stub_->Process(&context_);
  stream_->Write(RequestHeaders(pb::FULL_DUPLEX_STREAMED, pb::NONE, headers));
  stream_->Write(RequestBody(R"({"prompt":"1"})", true));
  Place();
  ASSERT_TRUE(stream_->Read(&answer_));
  EXPECT_TRUE(answer_.has_request_headers());
  ASSERT_TRUE(stream_->Read(&answer_));
  EXPECT_TRUE(answer_.request_body().response().body_mutation().streamed_response().end_of_stream());
  EXPECT_FALSE(stream_->Read(&answer_));
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_FALSE(ended_.try_wait());
  EXPECT_FALSE(sink_->Cancelled());
  observer->Write(ResponseHeaders(200));
  observer->WritesDone();
  EXPECT_TRUE(observer->Finish().ok());
  ended_.wait();
  EXPECT_THAT(ends_, ElementsAre(absl::StatusCode::kOk));
  EXPECT_THAT(handler_.AwaitCancels(0), ::testing::IsEmpty());
}

TEST_F(PickerServiceTest, HowTheServerHasAnsweredIsTheEnd) {
  for (const auto& [status, details, end] : std::vector<std::tuple<int, std::string, absl::StatusCode>>{
           {503, "remote_connection_failure", absl::StatusCode::kUnavailable},
           {503, "via_upstream", absl::StatusCode::kAborted},
           {429, "via_upstream", absl::StatusCode::kAborted}}) {
    grpc::ClientContext context;
    auto stream = stub_->Process(&context);
    testing::Latch ended{1};
    absl::StatusCode code = absl::StatusCode::kOk;
    testing::Latch submitted{1};
    handler_.on_submit = [&](core::RequestId, const std::shared_ptr<TokenSink>&) {
      submitted.count_down();
      return absl::OkStatus();
    };
    stream->Write(RequestHeaders(pb::NONE, pb::NONE, {{":path", "/v1/models"}}, true));
    submitted.wait();
    const auto* const request =
        dynamic_cast<const PlacedRequest*>(handler_.submitted().back().passed.message.get());
    request->SendTo({"e:1", std::nullopt}, [&](const absl::Status& told) {
      code = told.code();
      ended.count_down();
    });
    Out answer;
    ASSERT_TRUE(stream->Read(&answer));
    stream->Write(ResponseHeaders(status, details));
    ASSERT_TRUE(stream->Read(&answer));
    stream->WritesDone();
    stream->Finish();
    ended.wait();
    EXPECT_EQ(code, end) << status << details;
  }
}

TEST_F(PickerServiceTest, AClientThatLeavesWhileItWaitsIsCancelled) {
  Ask("{}");
  submitted_.wait();
  context_.TryCancel();
  EXPECT_THAT(handler_.AwaitCancels(1), ElementsAre(Pair(sink_->id(), false)));
  EXPECT_TRUE(sink_->Cancelled());
  Place();
  ended_.wait();
  EXPECT_THAT(ends_, ElementsAre(absl::StatusCode::kAborted)) << "nobody can be sent there any more";
}

TEST_F(PickerServiceTest, OnlyEndpointsThatEnvoyPermits) {
  handler_.loads.loads = {
      {.rank = 0, .worker_id = "http://10.0.0.1:8000#0", .running_requests = 0, .slots = 8},
      {.rank = 1, .worker_id = "http://10.0.0.2:8000#0", .running_requests = 3, .slots = 8},
      {.rank = 2, .worker_id = "http://10.0.0.2:8001#0", .running_requests = 2, .slots = 8},
      {.rank = 3, .worker_id = "http://10.0.0.2:8002#0", .slots = 8, .hands_over = true}};
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>&) {
    return absl::ResourceExhaustedError("enough");
  };
  const auto rank_within = [&](const std::string& subset, uint32_t status) {
    const size_t before = handler_.submitted().size();
    grpc::ClientContext context;
    auto stream = stub_->Process(&context);
    stream->Write(Within(subset));
    Out answer;
    EXPECT_TRUE(stream->Read(&answer));
    EXPECT_EQ(answer.immediate_response().status().code(), status) << subset;
    stream->Finish();
    const std::vector<ClientRequest> submitted = handler_.submitted();
    return submitted.size() == before ? -2 : static_cast<int>(submitted.back().rank.value_or(-1));
  };
  EXPECT_EQ(rank_within("10.0.0.2:8000", 429), 1);
  EXPECT_EQ(rank_within("10.0.0.2", 429), 2) << "any port of the host";
  EXPECT_EQ(rank_within("10.0.0.2,10.0.0.1:8000", 429), -1) << "all";
  EXPECT_EQ(rank_within("10.0.0.9", 503), -2);
  EXPECT_EQ(rank_within("", 503), -2);
}

// All wait for a rank that is full; another one would be free sooner.
TEST_F(PickerServiceTest, RequestsOfASubsetAreSpreadOverItsRanks) {
  for (uint32_t rank : {0, 1, 2})
    handler_.loads.loads.push_back({.rank = rank,
                                    .worker_id = absl::StrCat("http://10.0.0.", rank, ":8000#0"),
                                    .running_requests = 4,
                                    .slots = 4});
  std::vector<uint32_t> ranks;
  testing::Latch all{4};
  handler_.on_submit = [&](core::RequestId, const std::shared_ptr<TokenSink>&) {
    all.count_down();
    return absl::OkStatus();
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(std::make_unique<Call>(*stub_, Within("10.0.0.1,10.0.0.2")));
  all.wait();
  for (const ClientRequest& request : handler_.submitted()) ranks.push_back(request.rank.value_or(9));
  EXPECT_THAT(ranks, ::testing::UnorderedElementsAre(1, 1, 2, 2));
}

// GRPC may have two threads for all calls.
TEST_F(PickerServiceTest, LargeBodiesAreReadInTurnsAndDelayNoOthers) {
  PickerService service(&handler_, &authenticator_, {});
  testing::LoopbackServer server(&service);
  const auto stub = pb::ExternalProcessor::NewStub(server.channel());
  const int greedy = 8 + 2 * static_cast<int>(std::thread::hardware_concurrency());
  testing::Latch go_on{1}, all{greedy + 1};
  handler_.on_submit = [&](core::RequestId, const std::shared_ptr<TokenSink>&) {
    go_on.wait();
    all.count_down();
    return absl::OkStatus();
  };
  const auto await_submitted = [&](size_t count) {
    while (handler_.submitted().size() < count) absl::SleepFor(absl::Milliseconds(1));
  };
  std::vector<std::unique_ptr<Call>> calls;
  const auto call = [&](const std::string& tenant, size_t bytes) {
    calls.push_back(std::make_unique<Call>(
        *stub, RequestHeaders(pb::FULL_DUPLEX_STREAMED, pb::NONE,
                              {{":path", "/v1/completions"}, {"x-gateway-inference-fairness-id", tenant}})));
    calls.back()->stream->Write(RequestBody(R"({"prompt":")" + std::string(bytes, 'a') + R"("})", true));
  };
  for (int i = 0; i < greedy; ++i) call("greedy", 100'000);
  await_submitted(1);
  call("other", 1);
  await_submitted(2);
  EXPECT_EQ(handler_.submitted().back().tenant, "other");
  go_on.count_down();
  all.wait();
}

TEST_F(PickerServiceTest, ARequestIsForwardedOnce) {
  Ask("{}");
  Place();
  ASSERT_TRUE(stream_->Read(&answer_));
  bool aborted = false;
  dynamic_cast<const PlacedRequest*>(handler_.submitted().back().passed.message.get())
      ->SendTo({"10.0.0.2:8000", std::nullopt},
               [&](const absl::Status& end) { aborted = absl::IsAborted(end); });
  EXPECT_TRUE(aborted);
}

TEST_F(PickerServiceTest, ABodyIsKeptWhereItsPromptMayBeHandedOver) {
  handler_.set_serving({.ready = true, .max_sequence_tokens = 1000, .hands_over = true});
  Ask(R"({"messages":[{}],"max_tokens":5})",
      {{":path", "/model/v1/chat/completions?x=1"}, {"authorization", "Bearer s"}});
  submitted_.wait();
  const Passing passed = handler_.submitted().back().passed;
  EXPECT_FALSE(passed.no_hand_off);
  EXPECT_EQ(passed.message->bytes(), 32);
  const auto* const request = dynamic_cast<const PlacedRequest*>(passed.message.get());
  EXPECT_EQ(request->ToPrefill().body, R"({"messages":[{}],"max_tokens":5})");
  EXPECT_EQ(request->ToPrefill().path, "/v1/chat/completions");
  EXPECT_EQ(request->ToPrefill().authorization, "Bearer s");
  Place();
  ASSERT_TRUE(stream_->Read(&answer_));
  EXPECT_FALSE(answer_.request_body().response().has_body_mutation()) << "nothing was handed over";
  EXPECT_EQ(request->ToPrefill().body, "") << "it was sent";
}

TEST_F(PickerServiceTest, ATenantsRequestsThatDoNotEndLeaveOthersTheirShare) {
  const auto of = [](const std::string& tenant) {
    return RequestHeaders(pb::BUFFERED, pb::NONE,
                          {{":path", "/v1/completions"}, {"x-gateway-inference-fairness-id", tenant}});
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 5; ++i) {
    calls.push_back(std::make_unique<Call>(*stub_, of("greedy")));
    EXPECT_TRUE(calls.back()->Taken());
  }
  ASSERT_TRUE(calls.back()->stream->Read(&calls.back()->answer));
  EXPECT_EQ(calls.back()->answer.immediate_response().status().code(), 429u);
  EXPECT_TRUE(Call(*stub_, of("other")).Taken());
  // While the other tenant holds something, a share is smaller.
  while (service_.streams() > 4) absl::SleepFor(absl::Milliseconds(1));
  // One that waits for its place counts in the pool instead, and bodies count too.
  calls[0]->stream->Write(RequestBody("{}", true));
  submitted_.wait();
  calls.push_back(std::make_unique<Call>(*stub_, of("greedy")));
  EXPECT_TRUE(calls.back()->Taken());
  calls.back()->stream->Write(RequestBody(std::string(PickerService::kStreamBytes, ' '), false));
  ASSERT_TRUE(calls.back()->stream->Read(&calls.back()->answer));
  EXPECT_EQ(calls.back()->answer.immediate_response().status().code(), 429u);
}

TEST_F(PickerServiceTest, WhoDoesNotReadItsAnswersIsNotRead) {
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  stream_ = stub_->Process(&context_);
  stream_->Write(RequestHeaders(pb::NONE, pb::FULL_DUPLEX_STREAMED, {{":path", "/v1/models"}}, true));
  int taken = 0;
  while (taken < 1000 &&
         stream_->Write(bfio::testing::ResponseBody(std::string(size_t{64} << 10, 'x'), false)))
    ++taken;
  EXPECT_LT(taken, 1000) << "the router holds 64 MiB of answers";
}

TEST_F(PickerServiceTest, AnUnreadableBodyAndTenantAreRefused) {
  Ask("no json");
  ASSERT_TRUE(stream_->Read(&answer_));
  EXPECT_EQ(answer_.immediate_response().status().code(), 400u);
}

}  // namespace
}  // namespace bfio::router::picker
