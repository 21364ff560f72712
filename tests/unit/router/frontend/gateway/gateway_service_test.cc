// The engines' APIs for gateways in front of a fake router state.
#include "router/frontend/gateway/gateway_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/status.h"
#include "tests/testing/engine_protocols.h"
#include "tests/testing/latch.h"
#include "tests/testing/loopback_server.h"
#include "tests/unit/router/frontend/fake_handler.h"
#include "tests/unit/router/frontend/gateway/protocols.h"

namespace bfio::router::gateway {
namespace {

using bfio::testing::Vllm;
namespace common_pb = bfio::testing::common_pb;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using Tokens = std::vector<uint32_t>;

// Letters and a special token; "config.json" is that of a small model.
std::shared_ptr<const ModelFiles> Letters() {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "gateway_service_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json")
      << R"({"model":{"vocab":{"a":0,"b":1,"c":2}},"decoder":{"type":"ByteLevel"}})";
  std::ofstream(folder / "config.json") << R"({"vocab_size":3})";
  // Larger than one part of the archive.
  std::ofstream(folder / "merges.txt") << std::string(200'000, 'm');
  auto model = LoadModelFiles(folder.string());
  EXPECT_TRUE(model.ok()) << model.status();
  return std::make_shared<const ModelFiles>(*std::move(model));
}

template <typename P>
class GatewayServiceTest : public ::testing::Test {
 protected:
  using Request = typename P::GenerateRequest;
  using Response = typename P::GenerateResponse;

  GatewayServiceTest() { handler_.set_serving({true, 1000}); }
  ~GatewayServiceTest() override {
    service_.Close();
    handler_.on_submit = nullptr;
  }

  static GatewayOptions Options() {
    GatewayOptions options;
    options.model_name = "letters";
    options.model = Letters();
    options.new_request_id = [] { return "drawn"; };
    return options;
  }
  static Request RequestFor(bool stream, uint32_t outputs = 1) {
    Request request;
    request.set_request_id("r");
    request.mutable_tokenized()->add_input_ids(2);
    P::SetMaxTokens(*request.mutable_sampling_params(), 4);
    request.mutable_sampling_params()->set_n(outputs);
    request.set_stream(stream);
    return request;
  }
  absl::Status Generate(const Request& request, grpc::ClientContext* context = nullptr) {
    grpc::ClientContext own;
    messages_got_.clear();
    const auto reader = stub_->Generate(context == nullptr ? &own : context, request);
    for (Response message; reader->Read(&message);) messages_got_.push_back(message);
    return FromGrpcStatus(reader->Finish());
  }
  // Every output is refused with "enough" from now on.
  void RefuseAll() {
    handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>&) {
      return absl::UnavailableError("enough");
    };
  }
  // A call with a header.
  absl::Status GenerateWith(const char* header, const char* value) {
    grpc::ClientContext context;
    context.AddMetadata(header, value);
    return Generate(RequestFor(true), &context);
  }
  absl::Status Abort(const typename P::AbortRequest& request) {
    grpc::ClientContext context;
    typename P::AbortResponse response;
    return FromGrpcStatus(stub_->Abort(&context, request, &response));
  }
  // Collects the outputs' sinks; `then` runs when there are `count`.
  void OnOutputs(size_t count, std::function<void(std::vector<std::shared_ptr<TokenSink>>&)> then) {
    handler_.on_submit = [this, count, then = std::move(then)](core::RequestId id,
                                                               std::shared_ptr<TokenSink> sink) {
      EXPECT_EQ(sink->id(), id);
      sinks_.push_back(std::move(sink));
      if (sinks_.size() < count) return absl::OkStatus();
      // The last End allows the next call to begin, on another thread.
      std::vector<std::shared_ptr<TokenSink>> sinks = std::exchange(sinks_, {});
      then(sinks);
      return absl::OkStatus();
    };
  }

  // The same service for callers with a token: the tenant acme's, or that of the gateway smg.
  static constexpr char kAcmeToken[] = "Bearer 0123456789abcdef0123456789abcdef";
  static constexpr char kGatewayToken[] = "Bearer fedcba9876543210fedcba9876543210";
  struct ForAcme {
    explicit ForAcme(GatewayServiceTest& test)
        : service(ProtocolFor<P>(), &test.handler_, &authenticator, &test.messages_, Options()) {}
    static std::unique_ptr<TokenFile> Tokens() {
      const std::string path = ::testing::TempDir() + "/gateway_service_test_tokens";
      std::ofstream(path) << "acme token:0123456789abcdef0123456789abcdef\n"
                             "smg token:fedcba9876543210fedcba9876543210 role=gateway\n";
      auto tokens = TokenFile::Open(path);
      EXPECT_TRUE(tokens.ok()) << tokens.status();
      return *std::move(tokens);
    }

    // A tenant of a gateway may begin 200 calls.
    Authenticator authenticator{"client API", Tokens(), {0.001, 200, MonotonicNow()}};
    GatewayService service;
    testing::LoopbackServer server{&service};
    const std::unique_ptr<typename P::Service::Stub> stub = P::Service::NewStub(server.channel());
  };

  FakeHandler handler_;
  Authenticator authenticator_{"client API", nullptr};
  FirstMessages messages_;
  GatewayService service_{ProtocolFor<P>(), &handler_, &authenticator_, &messages_, Options()};
  testing::LoopbackServer server_{&service_};
  const std::unique_ptr<typename P::Service::Stub> stub_ = P::Service::NewStub(server_.channel());
  std::vector<std::shared_ptr<TokenSink>> sinks_;
  // The responses to the last Generate.
  std::vector<Response> messages_got_;
};
TYPED_TEST_SUITE(GatewayServiceTest, bfio::testing::EngineProtocols, bfio::testing::ProtocolNames);

TYPED_TEST(GatewayServiceTest, AStreamIsChunksAndAnEnd) {
  this->OnOutputs(1, [](auto& sinks) {
    Deliver(*sinks[0], {1, 2});
    Deliver(*sinks[0], {0});
    End(*sinks[0], absl::OkStatus(), FinishOf(FinishReason::kLength));
  });
  ASSERT_TRUE(this->Generate(this->RequestFor(true)).ok());
  const auto& messages = this->messages_got_;
  ASSERT_GE(messages.size(), 2u);
  Tokens tokens;
  for (size_t i = 0; i + 1 < messages.size(); ++i) {
    auto chunk = messages[i].chunk();
    tokens.insert(tokens.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    const size_t count =
        TypeParam::kChunksCountAll ? tokens.size() : static_cast<size_t>(chunk.token_ids_size());
    chunk.clear_token_ids();
    EXPECT_EQ(chunk.ShortDebugString(), absl::StrCat("prompt_tokens: 1 completion_tokens: ", count));
  }
  EXPECT_THAT(tokens, ElementsAre(1, 2, 0));
  EXPECT_EQ(messages.back().complete().ShortDebugString(),
            "finish_reason: \"length\" prompt_tokens: 1 completion_tokens: 3")
      << "the chunks had the tokens";
  ASSERT_THAT(this->handler_.submitted(), SizeIs(1));
  EXPECT_EQ(this->handler_.submitted()[0].request_id, "r");
  if constexpr (requires { messages[0].request_id(); }) {
    for (const auto& message : messages) EXPECT_EQ(message.request_id(), "r");
  }
}

TYPED_TEST(GatewayServiceTest, WithoutAStreamAllComesAtTheEnd) {
  std::atomic<FinishReason> reason = FinishReason::kStop;
  this->OnOutputs(1, [&](auto& sinks) {
    Deliver(*sinks[0], {1, 2});
    Deliver(*sinks[0], {0});
    End(*sinks[0], absl::OkStatus(), FinishOf(reason));
  });
  auto request = this->RequestFor(false);
  request.clear_request_id();
  const auto complete = [&] {
    EXPECT_TRUE(this->Generate(request).ok());
    EXPECT_THAT(this->messages_got_, SizeIs(1));
    return this->messages_got_.at(0).complete().ShortDebugString();
  };
  const auto ended_by = [](const char* why) {
    return absl::StrCat("output_ids: 1 output_ids: 2 output_ids: 0 finish_reason: \"", why,
                        "\" prompt_tokens: 1 completion_tokens: 3");
  };
  const std::string named = ended_by("stop") + " matched_token_id: 0";
  EXPECT_EQ(complete(), TypeParam::kNamesEos ? named : ended_by("stop")) << "the model's own end of sequence";
  EXPECT_EQ(this->handler_.submitted()[0].request_id, "drawn");
  if constexpr (requires { this->messages_got_[0].request_id(); }) {
    EXPECT_EQ(this->messages_got_[0].request_id(), "drawn");
  }
  request.mutable_sampling_params()->add_stop_token_ids(0);
  EXPECT_EQ(complete(), named);
  reason = FinishReason::kLength;
  EXPECT_EQ(complete(), ended_by("length"));
}

// SMG takes the first completion for output 0, whatever its index: whole outputs are sent in order.
TYPED_TEST(GatewayServiceTest, SeveralOutputsAreSeveralRequests) {
  this->OnOutputs(3, [](auto& sinks) {
    for (uint32_t i = 0; i < 3; ++i) Deliver(*sinks[i], {i});
    End(*sinks[1], absl::OkStatus(), FinishOf(FinishReason::kStop));
    Deliver(*sinks[2], {7});
    End(*sinks[2], absl::OkStatus(), FinishOf(FinishReason::kAbort));
    End(*sinks[0], absl::OkStatus(), FinishOf(FinishReason::kLength));
  });
  for (const bool stream : {true, false}) {
    SCOPED_TRACE(stream);
    ASSERT_TRUE(this->Generate(this->RequestFor(stream, 3)).ok());
    std::vector<Tokens> tokens(3);
    std::vector<std::string> reasons(3);
    std::vector<uint32_t> order;
    const auto add = [&](uint32_t index, const auto& ids) {
      EXPECT_EQ(reasons.at(index), "") << "nothing follows its end";
      tokens.at(index).insert(tokens.at(index).end(), ids.begin(), ids.end());
    };
    for (const auto& message : this->messages_got_) {
      if constexpr (requires { message.request_id(); }) {
        EXPECT_EQ(message.request_id(), "r") << "the call's, not the output's";
      }
      if (message.has_chunk()) {
        add(message.chunk().index(), message.chunk().token_ids());
        continue;
      }
      const auto& complete = message.complete();
      add(complete.index(), complete.output_ids());
      EXPECT_EQ(complete.completion_tokens(), tokens.at(complete.index()).size());
      reasons.at(complete.index()) = complete.finish_reason();
      order.push_back(complete.index());
    }
    EXPECT_THAT(tokens, ElementsAre(Tokens{0}, Tokens{1}, Tokens{2, 7}));
    EXPECT_THAT(reasons, ElementsAre("length", "stop", "abort"));
    if (!stream) {
      EXPECT_THAT(order, ElementsAre(0, 1, 2));
    }
  }
  ASSERT_THAT(this->handler_.submitted(), SizeIs(6));
  EXPECT_EQ(this->handler_.calls, 2) << "nothing comes between the outputs of a call";
  EXPECT_EQ(this->handler_.submitted()[2].request_id, "r");
  EXPECT_EQ(this->handler_.submitted()[2].output, 2u);
}

TYPED_TEST(GatewayServiceTest, ARefusedCallEndsWithItsStatus) {
  this->RefuseAll();
  EXPECT_EQ(this->Generate(this->RequestFor(true, 4)), absl::UnavailableError("enough"));
  EXPECT_THAT(this->messages_got_, IsEmpty());
  EXPECT_THAT(this->handler_.AwaitCancels(0), IsEmpty()) << "there is nothing to cancel";
  auto request = this->RequestFor(true);
  request.mutable_sampling_params()->set_min_p(0.5f);
  const absl::Status refused = this->Generate(request);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("min_p"));
}

TYPED_TEST(GatewayServiceTest, AnOutputThatFailsAtOnceCancelsTheOthers) {
  int submitted = 0;
  testing::Latch all_submitted{1};
  this->handler_.on_submit = [&](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    // The decision thread may end the output before the whole call has been submitted.
    if (++submitted == 1) End(*sink, absl::AlreadyExistsError("taken"), std::nullopt);
    if (submitted == 3) all_submitted.count_down();
    return absl::OkStatus();
  };
  const core::RequestId first = this->handler_.NextId() + 1;
  EXPECT_TRUE(absl::IsAlreadyExists(this->Generate(this->RequestFor(true, 3))));
  EXPECT_THAT(this->handler_.AwaitCancels(2), ElementsAre(Pair(first + 1, false), Pair(first + 2, false)));
  // The answer and the cancellations may come before the last output is submitted.
  EXPECT_TRUE(all_submitted.wait_for(absl::Seconds(60)));
}

TYPED_TEST(GatewayServiceTest, ALostOutputFailsItsCall) {
  this->OnOutputs(2, [](auto& sinks) {
    for (auto& sink : sinks) Deliver(*sink, {1});
    End(*sinks[1], absl::OkStatus(), FinishOf(FinishReason::kLength));
    End(*sinks[0], absl::UnavailableError("lost"), std::nullopt);
  });
  EXPECT_EQ(this->Generate(this->RequestFor(true, 2)), absl::UnavailableError("lost"));
  EXPECT_EQ(this->Generate(this->RequestFor(false, 2)), absl::UnavailableError("lost"));
  EXPECT_THAT(this->messages_got_, IsEmpty()) << "no part of the answer";
}

TYPED_TEST(GatewayServiceTest, HeadersSetTenantAndObjective) {
  this->RefuseAll();
  const auto submitted = [this] { return this->handler_.submitted().back(); };
  EXPECT_EQ(this->GenerateWith("bfio-tenant", "acme").message(), "enough");
  EXPECT_EQ(submitted().tenant, "acme");
  EXPECT_EQ(submitted().ttft_objective, std::nullopt);
  EXPECT_EQ(this->GenerateWith("x-slo-ttft-ms", "62.5").message(), "enough");
  EXPECT_EQ(submitted().tenant, "");
  EXPECT_EQ(submitted().ttft_objective, absl::Microseconds(62'500));
  EXPECT_TRUE(absl::IsInvalidArgument(this->GenerateWith("bfio-tenant", "two words")));
  for (const char* wrong : {"", "soon", "0", "-1", "nan", "inf", "3600001", "500 ms"}) {
    const absl::Status status = this->GenerateWith("x-slo-ttft-ms", wrong);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("x-slo-ttft-ms")) << wrong;
  }
  grpc::ClientContext aborting;
  aborting.AddMetadata("bfio-tenant", "two words");
  typename TypeParam::AbortResponse response;
  EXPECT_EQ(this->stub_->Abort(&aborting, {}, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(this->handler_.submitted(), SizeIs(2));
}

TYPED_TEST(GatewayServiceTest, AnAbortNamesARequestAndMayBeRefused) {
  EXPECT_TRUE(this->Abort(TypeParam::AbortOf("r")).ok());
  ASSERT_THAT(this->handler_.aborted(), SizeIs(1));
  EXPECT_EQ(this->handler_.aborted()[0].request_id, "r");
  this->handler_.refuse = absl::UnavailableError("shutting down");
  EXPECT_EQ(this->Abort(TypeParam::AbortOf("r")), this->handler_.refuse);
}

TYPED_TEST(GatewayServiceTest, AnAbortIsOfTheTenantThatSendsIt) {
  typename TestFixture::ForAcme acme(*this);
  const auto abort = [](typename TypeParam::Service::Stub& stub, const char* token, const char* tenant) {
    grpc::ClientContext context;
    if (*token != 0) context.AddMetadata("authorization", token);
    if (*tenant != 0) context.AddMetadata("bfio-tenant", tenant);
    typename TypeParam::AbortResponse response;
    return stub.Abort(&context, TypeParam::AbortOf("r"), &response).error_code();
  };
  EXPECT_EQ(abort(*this->stub_, "", "other"), grpc::StatusCode::OK);
  EXPECT_EQ(abort(*this->stub_, "", ""), grpc::StatusCode::OK);
  EXPECT_EQ(abort(*acme.stub, TestFixture::kAcmeToken, ""), grpc::StatusCode::OK);
  EXPECT_EQ(abort(*acme.stub, TestFixture::kAcmeToken, "other"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(abort(*acme.stub, TestFixture::kGatewayToken, "other"), grpc::StatusCode::OK);
  EXPECT_EQ(abort(*acme.stub, TestFixture::kGatewayToken, ""), grpc::StatusCode::OK);
  std::vector<std::string> tenants;
  for (const auto& request : this->handler_.aborted()) tenants.push_back(request.tenant);
  EXPECT_THAT(tenants, ElementsAre("other", "", "acme", "other", "smg"));
  // A gateway's calls are counted by tenant.
  for (int i = 1; i < 200; ++i) abort(*acme.stub, TestFixture::kGatewayToken, "other");
  EXPECT_EQ(abort(*acme.stub, TestFixture::kGatewayToken, "other"), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(abort(*acme.stub, TestFixture::kGatewayToken, "another"), grpc::StatusCode::OK);
}

using VllmServiceTest = GatewayServiceTest<Vllm>;

TEST_F(VllmServiceTest, AnAbortMayNameSeveralRequests) {
  Vllm::AbortRequest abort;
  for (size_t i = 0; i <= GatewayService::kMaxAborts; ++i) abort.add_request_ids("x");
  EXPECT_TRUE(absl::IsInvalidArgument(Abort(abort)));
  EXPECT_THAT(handler_.aborted(), IsEmpty());
  EXPECT_TRUE(Abort({}).ok());
  abort.mutable_request_ids()->DeleteSubrange(0, GatewayService::kMaxAborts);
  abort.add_request_ids("y");
  EXPECT_TRUE(Abort(abort).ok());
  ASSERT_THAT(handler_.aborted(), SizeIs(2));
  EXPECT_EQ(handler_.aborted()[1].request_id, "y");
}

TYPED_TEST(GatewayServiceTest, HealthIsWhetherTheGroupsServe) {
  for (const bool ready : {true, false}) {
    this->handler_.set_serving({ready, 1000});
    typename TypeParam::HealthCheckResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(this->stub_->HealthCheck(&context, {}, &response).ok());
    EXPECT_EQ(response.healthy(), ready);
    EXPECT_EQ(response.message() == "serving", ready);
  }
}

TYPED_TEST(GatewayServiceTest, TheTokenizerComesInParts) {
  grpc::ClientContext context, without;
  auto reader = this->stub_->GetTokenizer(&context, {});
  std::string archive, sha256;
  int parts = 0;
  common_pb::GetTokenizerChunk chunk;
  for (; reader->Read(&chunk); ++parts) {
    EXPECT_EQ(sha256, "") << "only the last part has it";
    archive += chunk.data();
    sha256 = chunk.sha256();
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_GE(parts, 4);
  const auto model = Letters();
  EXPECT_EQ(archive, model->archive);
  EXPECT_EQ(sha256, model->archive_sha256);
  GatewayOptions options = this->Options();
  options.model = nullptr;
  GatewayService service(ProtocolFor<TypeParam>(), &this->handler_, &this->authenticator_, &this->messages_,
                         options);
  testing::LoopbackServer server(&service);
  reader = TypeParam::Service::NewStub(server.channel())->GetTokenizer(&without, {});
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// A client that reads no further takes its share of the streams, and no more.
TYPED_TEST(GatewayServiceTest, OfTheTokenizersStreamsAConnectionOrAGatewaysTenantHasAShare) {
  std::list<grpc::ClientContext> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<common_pb::GetTokenizerChunk>>> unread;
  const auto take = [&](typename TypeParam::Service::Stub& stub, const char* token, const char* tenant) {
    common_pb::GetTokenizerChunk chunk;
    for (int64_t taken = 0;; ++taken) {
      grpc::ClientContext& context = contexts.emplace_back();
      if (*token != 0) context.AddMetadata("authorization", token);
      if (*tenant != 0) context.AddMetadata("bfio-tenant", tenant);
      auto reader = stub.GetTokenizer(&context, {});
      if (!reader->Read(&chunk)) {
        EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
        return taken;
      }
      unread.push_back(std::move(reader));
    }
  };
  constexpr int64_t kAll = GatewayService::kMaxTokenizers;
  EXPECT_EQ(take(*this->stub_, "", ""), kAll / 4);
  EXPECT_EQ(take(*this->stub_, "", "one"), kAll / 8) << "of its address' half";
  typename TestFixture::ForAcme acme(*this);
  EXPECT_EQ(take(*acme.stub, TestFixture::kGatewayToken, "one"), kAll / 2) << "one connection";
  EXPECT_EQ(take(*acme.stub, TestFixture::kGatewayToken, "two"), kAll / 4);
  EXPECT_EQ(take(*acme.stub, TestFixture::kGatewayToken, "acme"), kAll / 8);
  EXPECT_EQ(take(*acme.stub, TestFixture::kAcmeToken, ""), 0) << "its tenant has its share";
  for (grpc::ClientContext& context : contexts) context.TryCancel();
}

TYPED_TEST(GatewayServiceTest, SubscribersGetLoadRecords) {
  this->handler_.loads.loads.push_back({.running_requests = 3, .waiting_tokens = 8, .slots = 6});
  grpc::ClientContext context, refused;
  common_pb::SubscribeKvEventsRequest request;
  auto reader = this->stub_->SubscribeKvEvents(&refused, request);
  common_pb::KvEventBatch batch;
  EXPECT_FALSE(reader->Read(&batch)) << "it wants events alone";
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  request.set_load_records_before_first_batch(true);
  reader = this->stub_->SubscribeKvEvents(&context, request);
  for (uint64_t sample = 1; sample <= 2; ++sample) {  // the second one because a second has passed
    ASSERT_TRUE(reader->Read(&batch));
    EXPECT_EQ(batch.sequence_number(), 0u);
    EXPECT_EQ(batch.load().running_requests(), 3u);
    EXPECT_EQ(batch.load().waiting_uncached_tokens(), 8u);
    EXPECT_EQ(batch.load().sample(), sample);
  }
  this->service_.Close();
  while (reader->Read(&batch)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// Callers without a token are refused before the service receives any of their messages.
TYPED_TEST(GatewayServiceTest, EveryMethodAuthenticatesItsCaller) {
  typename TestFixture::ForAcme acme(*this);
  grpc::GenericStub stub(acme.server.channel());
  for (const char* method : {"Generate", "Abort", "HealthCheck", "GetModelInfo", "GetServerInfo", "GetLoads",
                             "GetTokenizer", "SubscribeKvEvents"}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, absl::StrCat("/", TypeParam::kService, "/", method), &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    queue.Next(&tag, &ok);
    grpc::Status status;
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
  }
  EXPECT_EQ(this->messages_.counts().receiving + this->messages_.counts().waiting, 0u);
  // With the token, the tenant is the token's owner; another tenant is refused.
  const auto submit = [&](const char* tenant) {
    this->RefuseAll();
    grpc::ClientContext context;
    context.AddMetadata("authorization", TestFixture::kAcmeToken);
    if (*tenant != 0) context.AddMetadata("bfio-tenant", tenant);
    const auto reader = acme.stub->Generate(&context, this->RequestFor(true));
    return reader->Finish().error_code();
  };
  EXPECT_EQ(submit(""), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(this->handler_.submitted().back().tenant, "acme");
  EXPECT_EQ(submit("other"), grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace bfio::router::gateway
