// vLLM's engine API in front of a fake router state.
#include "router/frontend/vllm/vllm_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/net/status.h"
#include "engines/vllm.grpc.pb.h"
#include "tests/testing/loopback_server.h"
#include "tests/unit/router/frontend/fake_handler.h"

namespace bfio::router::vllm {
namespace {

namespace common_pb = ::smg::grpc::common;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Tokens = std::vector<uint32_t>;

// Letters and a special token; "config.json" is that of a small model.
std::shared_ptr<const ModelFiles> Letters() {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "vllm_service_test";
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

class VllmServiceTest : public ::testing::Test {
 protected:
  VllmServiceTest() { handler_.serving = {true, 1000}; }
  ~VllmServiceTest() override { service_.Close(); }

  static gateway::GatewayOptions Options() {
    gateway::GatewayOptions options;
    options.model_name = "letters";
    options.model = std::make_shared<const ModelSource>(Letters());
    options.new_request_id = [] { return "drawn"; };
    return options;
  }
  static pb::GenerateRequest Request(bool stream) {
    pb::GenerateRequest request;
    request.set_request_id("r");
    request.mutable_tokenized()->add_input_ids(2);
    request.mutable_sampling_params()->set_max_tokens(4);
    request.set_stream(stream);
    return request;
  }
  absl::Status Generate(const pb::GenerateRequest& request, std::vector<pb::GenerateResponse>& messages,
                        grpc::ClientContext* context = nullptr) {
    grpc::ClientContext own;
    const auto reader = stub_->Generate(context == nullptr ? &own : context, request);
    for (pb::GenerateResponse message; reader->Read(&message);) messages.push_back(message);
    return FromGrpcStatus(reader->Finish());
  }

  FakeHandler handler_;
  Authenticator authenticator_{"client API", nullptr};
  FirstMessages messages_;
  VllmService service_{&handler_, &authenticator_, &messages_, Options()};
  testing::LoopbackServer server_{&service_};
  const std::unique_ptr<pb::VllmEngine::Stub> stub_ = pb::VllmEngine::NewStub(server_.channel());
};

TEST_F(VllmServiceTest, AStreamIsChunksAndAnEnd) {
  handler_.on_submit = [](core::RequestId id, const std::shared_ptr<TokenSink>& sink) {
    EXPECT_EQ(sink->id(), id);
    Deliver(*sink, {1, 2});
    Deliver(*sink, {0});
    End(*sink, absl::OkStatus(), FinishOf(FinishReason::kLength));
    return absl::OkStatus();
  };
  std::vector<pb::GenerateResponse> messages;
  ASSERT_TRUE(Generate(Request(true), messages).ok());
  ASSERT_GE(messages.size(), 2u);
  Tokens tokens;
  for (size_t i = 0; i + 1 < messages.size(); ++i) {
    ASSERT_TRUE(messages[i].has_chunk());
    const pb::GenerateStreamChunk& chunk = messages[i].chunk();
    tokens.insert(tokens.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    EXPECT_EQ(chunk.completion_tokens(), static_cast<uint32_t>(chunk.token_ids_size())) << "not a sum";
    EXPECT_EQ(chunk.prompt_tokens(), 1u);
    EXPECT_EQ(chunk.index(), 0u);
  }
  EXPECT_THAT(tokens, ElementsAre(1, 2, 0));
  ASSERT_TRUE(messages.back().has_complete());
  const pb::GenerateComplete& complete = messages.back().complete();
  EXPECT_THAT(complete.output_ids(), IsEmpty()) << "the chunks had them";
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_EQ(complete.prompt_tokens(), 1u);
  EXPECT_EQ(complete.completion_tokens(), 3u);
  EXPECT_EQ(complete.cached_tokens(), 0u);
  EXPECT_EQ(complete.matched_stop_case(), pb::GenerateComplete::MATCHED_STOP_NOT_SET);
  ASSERT_EQ(handler_.submitted.size(), 1u);
  EXPECT_EQ(handler_.submitted[0].request_id, "r");
}

TEST_F(VllmServiceTest, WithoutAStreamAllComesAtTheEnd) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    Deliver(*sink, {1, 2});
    Deliver(*sink, {0});
    End(*sink, absl::OkStatus(), FinishOf(FinishReason::kStop));
    return absl::OkStatus();
  };
  pb::GenerateRequest request = Request(false);
  request.clear_request_id();
  request.mutable_sampling_params()->add_stop_token_ids(0);
  std::vector<pb::GenerateResponse> messages;
  ASSERT_TRUE(Generate(request, messages).ok());
  ASSERT_EQ(messages.size(), 1u);
  const pb::GenerateComplete& complete = messages[0].complete();
  EXPECT_THAT(complete.output_ids(), ElementsAre(1, 2, 0));
  EXPECT_EQ(complete.finish_reason(), "stop");
  EXPECT_EQ(complete.completion_tokens(), 3u);
  EXPECT_EQ(complete.matched_token_id(), 0u);
  EXPECT_EQ(complete.matched_stop_case(), pb::GenerateComplete::kMatchedTokenId);
  EXPECT_EQ(handler_.submitted[0].request_id, "drawn");
}

TEST_F(VllmServiceTest, SeveralOutputsAreSeveralRequests) {
  std::vector<std::shared_ptr<TokenSink>> sinks;
  handler_.on_submit = [&](core::RequestId, std::shared_ptr<TokenSink> sink) {
    sinks.push_back(std::move(sink));
    if (sinks.size() < 3) return absl::OkStatus();
    for (uint32_t i = 0; i < 3; ++i) Deliver(*sinks[i], {i});
    for (uint32_t i = 0; i < 3; ++i) Deliver(*sinks[i], {i});
    End(*sinks[1], absl::OkStatus(), FinishOf(FinishReason::kStop));
    End(*sinks[2], absl::OkStatus(), FinishOf(FinishReason::kAbort));
    End(*sinks[0], absl::OkStatus(), FinishOf(FinishReason::kLength));
    return absl::OkStatus();
  };
  pb::GenerateRequest request = Request(true);
  request.mutable_sampling_params()->set_n(3);
  request.mutable_sampling_params()->set_seed(7);
  std::vector<pb::GenerateResponse> messages;
  ASSERT_TRUE(Generate(request, messages).ok());
  std::vector<Tokens> tokens(3);
  std::vector<std::string> reasons(3);
  for (const pb::GenerateResponse& message : messages) {
    if (message.has_complete()) {
      EXPECT_EQ(reasons.at(message.complete().index()), "") << "one end for each";
      reasons.at(message.complete().index()) = message.complete().finish_reason();
      EXPECT_EQ(message.complete().completion_tokens(), 2u);
      continue;
    }
    Tokens& output = tokens.at(message.chunk().index());
    EXPECT_EQ(reasons.at(message.chunk().index()), "") << "nothing after its end";
    output.insert(output.end(), message.chunk().token_ids().begin(), message.chunk().token_ids().end());
  }
  EXPECT_THAT(tokens, ElementsAre(Tokens{0, 0}, Tokens{1, 1}, Tokens{2, 2}));
  EXPECT_THAT(reasons, ElementsAre("length", "stop", "abort"));
  ASSERT_EQ(handler_.submitted.size(), 3u);
  EXPECT_EQ(handler_.calls, 1) << "nothing comes between its outputs";
  EXPECT_EQ(handler_.submitted[2].request_id, "r");
  EXPECT_EQ(handler_.submitted[2].output, 2u);
  EXPECT_EQ(handler_.submitted[2].sampling.seed, 9u);
}

// SMG takes the first completion for output 0, whatever its index.
TEST_F(VllmServiceTest, WholeOutputsAreSentInOrder) {
  std::vector<std::shared_ptr<TokenSink>> sinks;
  absl::Status last = absl::OkStatus();
  handler_.on_submit = [&](core::RequestId, std::shared_ptr<TokenSink> sink) {
    sinks.push_back(std::move(sink));
    if (sinks.size() < 3) return absl::OkStatus();
    // The last End allows the next call to begin, on another thread.
    const std::vector<std::shared_ptr<TokenSink>> outputs = std::exchange(sinks, {});
    for (const size_t i : {1, 2}) {
      Deliver(*outputs[i], {static_cast<uint32_t>(i)});
      End(*outputs[i], absl::OkStatus(), FinishOf(FinishReason::kLength));
    }
    Deliver(*outputs[0], {0});
    if (last.ok()) {
      End(*outputs[0], last, FinishOf(FinishReason::kStop));
    } else {
      End(*outputs[0], last, std::nullopt);
    }
    return absl::OkStatus();
  };
  pb::GenerateRequest request = Request(false);
  request.mutable_sampling_params()->set_n(3);
  std::vector<pb::GenerateResponse> messages;
  ASSERT_TRUE(Generate(request, messages).ok());
  ASSERT_EQ(messages.size(), 3u);
  for (uint32_t index = 0; index < 3; ++index) {
    EXPECT_EQ(messages[index].complete().index(), index);
    EXPECT_THAT(messages[index].complete().output_ids(), ElementsAre(index));
  }
  last = absl::UnavailableError("lost");
  messages.clear();
  EXPECT_EQ(Generate(request, messages), last);
  EXPECT_THAT(messages, IsEmpty()) << "no part of the answer";
}

TEST_F(VllmServiceTest, ARefusedCallEndsWithItsStatus) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>&) {
    return absl::ResourceExhaustedError("full");
  };
  pb::GenerateRequest request = Request(true);
  request.mutable_sampling_params()->set_n(4);
  std::vector<pb::GenerateResponse> messages;
  EXPECT_EQ(Generate(request, messages), absl::ResourceExhaustedError("full"));
  EXPECT_THAT(messages, IsEmpty());
  EXPECT_FALSE(handler_.AwaitCancel(absl::ZeroDuration()).has_value()) << "there is nothing to cancel";
}

TEST_F(VllmServiceTest, AnOutputThatFailsAtOnceCancelsTheOthers) {
  int submitted = 0;
  absl::Notification all_submitted;
  handler_.on_submit = [&](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    // The decision thread may end the output before the whole call has been submitted.
    if (++submitted == 1) End(*sink, absl::AlreadyExistsError("taken"), std::nullopt);
    if (submitted == 3) all_submitted.Notify();
    return absl::OkStatus();
  };
  const core::RequestId first = handler_.NextId() + 1;
  pb::GenerateRequest request = Request(true);
  request.mutable_sampling_params()->set_n(3);
  std::vector<pb::GenerateResponse> messages;
  EXPECT_TRUE(absl::IsAlreadyExists(Generate(request, messages)));
  EXPECT_THAT(handler_.AwaitCancels(2), ElementsAre(first + 1, first + 2));
  // The answer and the cancellations may come before the last output is submitted.
  EXPECT_TRUE(all_submitted.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

TEST_F(VllmServiceTest, ATextEndsTheOutput) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    Deliver(*sink, {0, 0});
    EXPECT_EQ(sink->Deliver(2, Tokens{1}, {}, absl::UnixEpoch()), TokenSink::Delivery::kEnough);
    End(*sink, absl::OkStatus(), FinishOf(FinishReason::kStop));
    return absl::OkStatus();
  };
  pb::GenerateRequest request = Request(false);
  request.mutable_sampling_params()->add_stop("ab");
  std::vector<pb::GenerateResponse> messages;
  ASSERT_TRUE(Generate(request, messages).ok());
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[0].complete().output_ids(), ElementsAre(0, 0, 1));
  EXPECT_EQ(messages[0].complete().finish_reason(), "stop");
  EXPECT_EQ(messages[0].complete().matched_stop_str(), "ab");
}

TEST_F(VllmServiceTest, ErrorsAreStatuses) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    Deliver(*sink, {1});
    End(*sink, absl::UnavailableError("lost"), std::nullopt);
    return absl::OkStatus();
  };
  std::vector<pb::GenerateResponse> messages;
  EXPECT_EQ(Generate(Request(true), messages), absl::UnavailableError("lost"));
  messages.clear();
  EXPECT_EQ(Generate(Request(false), messages), absl::UnavailableError("lost"));
  EXPECT_THAT(messages, IsEmpty()) << "no half of an output";
  pb::GenerateRequest request = Request(true);
  request.mutable_sampling_params()->set_prompt_logprobs(1);
  const absl::Status refused = Generate(request, messages);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("prompt_logprobs"));
}

TEST_F(VllmServiceTest, AClientThatLeavesCancelsAllOutputs) {
  std::vector<std::shared_ptr<TokenSink>> sinks;
  handler_.on_submit = [&](core::RequestId, std::shared_ptr<TokenSink> sink) {
    sinks.push_back(std::move(sink));
    if (sinks.size() == 2) Deliver(*sinks[0], {1});
    return absl::OkStatus();
  };
  pb::GenerateRequest request = Request(true);
  request.mutable_sampling_params()->set_n(2);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  pb::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  context.TryCancel();
  EXPECT_THAT(handler_.AwaitCancels(2), ElementsAre(sinks[0]->id(), sinks[1]->id()));
  for (const auto& sink : sinks) End(*sink, absl::CancelledError(), std::nullopt);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(VllmServiceTest, TheTenantIsOfTheHeaderWhereThereAreNoTokens) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>&) {
    return absl::UnavailableError("enough");
  };
  std::vector<pb::GenerateResponse> messages;
  grpc::ClientContext context;
  context.AddMetadata("bfio-tenant", "acme");
  EXPECT_EQ(Generate(Request(true), messages, &context).message(), "enough");
  EXPECT_EQ(handler_.submitted.back().tenant, "acme");
  EXPECT_EQ(Generate(Request(true), messages).message(), "enough");
  EXPECT_EQ(handler_.submitted.back().tenant, "");
  grpc::ClientContext spaced, aborting;
  spaced.AddMetadata("bfio-tenant", "two words");
  EXPECT_TRUE(absl::IsInvalidArgument(Generate(Request(true), messages, &spaced)));
  aborting.AddMetadata("bfio-tenant", "two words");
  pb::AbortResponse response;
  EXPECT_EQ(stub_->Abort(&aborting, {}, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(handler_.submitted.size(), 2u);
}

TEST_F(VllmServiceTest, AHeaderSetsTheObjective) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>&) {
    return absl::UnavailableError("enough");
  };
  std::vector<pb::GenerateResponse> messages;
  grpc::ClientContext context;
  context.AddMetadata("x-slo-ttft-ms", "62.5");
  EXPECT_EQ(Generate(Request(true), messages, &context).message(), "enough");
  EXPECT_EQ(handler_.submitted.back().ttft_objective, absl::Microseconds(62'500));
  EXPECT_EQ(Generate(Request(true), messages).message(), "enough");
  EXPECT_EQ(handler_.submitted.back().ttft_objective, std::nullopt);
  for (const char* wrong : {"", "soon", "0", "-1", "nan", "inf", "3600001", "500 ms"}) {
    grpc::ClientContext refused;
    refused.AddMetadata("x-slo-ttft-ms", wrong);
    const absl::Status status = Generate(Request(true), messages, &refused);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("x-slo-ttft-ms")) << wrong;
  }
  EXPECT_EQ(handler_.submitted.size(), 2u);
}

// The service does not track which outputs are still running.
TEST_F(VllmServiceTest, AnAbortNamesRequestsAndNotTheirOutputs) {
  std::vector<std::shared_ptr<TokenSink>> sinks;
  handler_.on_submit = [&](core::RequestId, std::shared_ptr<TokenSink> sink) {
    sinks.push_back(std::move(sink));
    if (sinks.size() == 3) Deliver(*sinks[0], {1});
    return absl::OkStatus();
  };
  pb::GenerateRequest request = Request(true);
  request.mutable_sampling_params()->set_n(3);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  pb::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  pb::AbortRequest abort;
  abort.add_request_ids("other");
  abort.add_request_ids("r");
  pb::AbortResponse response;
  grpc::ClientContext aborting;
  ASSERT_TRUE(stub_->Abort(&aborting, abort, &response).ok());
  std::vector<std::string> names;
  for (const auto& one : handler_.all_aborted) names.push_back(one.request_id);
  EXPECT_THAT(names, ElementsAre("other", "r"));
  for (const auto& sink : sinks) End(*sink, absl::OkStatus(), FinishOf(FinishReason::kAbort));
  while (reader->Read(&message)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(VllmServiceTest, AnAbortIsBounded) {
  pb::AbortRequest abort;
  for (size_t i = 0; i <= VllmService::kMaxAborts; ++i) abort.add_request_ids("x");
  pb::AbortResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(stub_->Abort(&context, abort, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(handler_.all_aborted, IsEmpty());
  grpc::ClientContext none;
  EXPECT_TRUE(stub_->Abort(&none, pb::AbortRequest(), &response).ok());
  handler_.refuse = absl::UnavailableError("shutting down");
  abort.mutable_request_ids()->DeleteSubrange(0, VllmService::kMaxAborts);
  grpc::ClientContext refused;
  EXPECT_EQ(FromGrpcStatus(stub_->Abort(&refused, abort, &response)), handler_.refuse);
}

TEST_F(VllmServiceTest, HealthIsWhetherTheGroupsServe) {
  pb::HealthCheckResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->HealthCheck(&context, {}, &response).ok());
  EXPECT_TRUE(response.healthy());
  EXPECT_EQ(response.message(), "serving");
  handler_.serving.ready = false;
  grpc::ClientContext again;
  ASSERT_TRUE(stub_->HealthCheck(&again, {}, &response).ok());
  EXPECT_FALSE(response.healthy());
}

TEST_F(VllmServiceTest, ModelServerAndLoadsAreReported) {
  handler_.loads.loads.push_back({.running_requests = 3, .waiting_tokens = 8, .slots = 6});
  pb::GetModelInfoResponse model;
  grpc::ClientContext one, two, three, four;
  ASSERT_TRUE(stub_->GetModelInfo(&one, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "letters");
  EXPECT_EQ(model.vocab_size(), 3u);
  EXPECT_EQ(model.max_context_length(), 1000u);
  pb::GetServerInfoResponse server;
  ASSERT_TRUE(stub_->GetServerInfo(&two, {}, &server).ok());
  EXPECT_EQ(server.data_parallel_size(), 1);
  EXPECT_EQ(server.max_num_seqs(), 6);
  pb::GetLoadsResponse loads;
  pb::GetLoadsRequest request;
  request.add_include("core");
  request.set_dp_rank(0);
  ASSERT_TRUE(stub_->GetLoads(&three, request, &loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.loads(0).num_running_reqs(), 3);
  EXPECT_EQ(loads.loads(0).num_waiting_uncached_tokens(), 8);
  request.set_dp_rank(1);
  EXPECT_EQ(stub_->GetLoads(&four, request, &loads).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(VllmServiceTest, TheTokenizerComesInParts) {
  grpc::ClientContext context;
  const auto reader = stub_->GetTokenizer(&context, {});
  std::string archive, sha256;
  int parts = 0;
  for (common_pb::GetTokenizerChunk chunk; reader->Read(&chunk); ++parts) {
    EXPECT_EQ(sha256, "") << "only the last part has it";
    archive += chunk.data();
    sha256 = chunk.sha256();
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_GE(parts, 4);
  const auto model = Letters();
  EXPECT_EQ(archive, model->archive);
  EXPECT_EQ(sha256, model->archive_sha256);
}

TEST_F(VllmServiceTest, GetTokenizerFailsWithoutATokenizer) {
  gateway::GatewayOptions options = Options();
  options.model = nullptr;
  VllmService service(&handler_, &authenticator_, &messages_, options);
  testing::LoopbackServer server(&service);
  const auto stub = pb::VllmEngine::NewStub(server.channel());
  grpc::ClientContext context;
  const auto reader = stub->GetTokenizer(&context, {});
  common_pb::GetTokenizerChunk chunk;
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(VllmServiceTest, SubscribersGetLoadRecords) {
  handler_.loads.loads.push_back({.running_requests = 3, .waiting_tokens = 8, .slots = 6});
  grpc::ClientContext context;
  common_pb::SubscribeKvEventsRequest request;
  request.set_load_records_before_first_batch(true);
  const auto reader = stub_->SubscribeKvEvents(&context, request);
  common_pb::KvEventBatch batch;
  for (uint64_t sample = 1; sample <= 2; ++sample) {  // the second one because a second has passed
    ASSERT_TRUE(reader->Read(&batch));
    EXPECT_EQ(batch.sequence_number(), 0u);
    EXPECT_TRUE(batch.load().load_only());
    EXPECT_EQ(batch.load().running_requests(), 3u);
    EXPECT_EQ(batch.load().waiting_uncached_tokens(), 8u);
    EXPECT_EQ(batch.load().sample(), sample);
  }
  service_.Close();
  while (reader->Read(&batch)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(VllmServiceTest, SubscribersThatWantEventsAloneAreRefused) {
  grpc::ClientContext context;
  const auto reader = stub_->SubscribeKvEvents(&context, {});
  common_pb::KvEventBatch batch;
  EXPECT_FALSE(reader->Read(&batch));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// Callers without a token are refused before the service receives any of their messages.
TEST_F(VllmServiceTest, EveryMethodAuthenticatesItsCaller) {
  const std::string path = ::testing::TempDir() + "/vllm_service_test_tokens";
  std::ofstream(path) << "acme token:0123456789abcdef0123456789abcdef\n";
  auto tokens = TokenFile::Open(path);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  Authenticator authenticator("client API", *std::move(tokens));
  VllmService service(&handler_, &authenticator, &messages_, Options());
  testing::LoopbackServer server(&service);
  grpc::GenericStub stub(server.channel());
  for (const char* method : {"Generate", "Abort", "HealthCheck", "GetModelInfo", "GetServerInfo", "GetLoads",
                             "GetTokenizer", "SubscribeKvEvents"}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call =
        stub.PrepareCall(&context, std::string("/vllm.grpc.engine.VllmEngine/") + method, &queue);
    const auto next = [&] {
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
    };
    call->StartCall(nullptr);
    next();
    grpc::Status status;
    call->Finish(&status, nullptr);
    next();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
  }
  EXPECT_EQ(messages_.counts().receiving + messages_.counts().waiting, 0u);
  // With the token, the tenant is the token's owner; another tenant is refused.
  const auto engine = pb::VllmEngine::NewStub(server.channel());
  const auto submit = [&](const char* tenant) {
    handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>&) {
      return absl::UnavailableError("enough");
    };
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer 0123456789abcdef0123456789abcdef");
    if (*tenant != 0) context.AddMetadata("bfio-tenant", tenant);
    const auto reader = engine->Generate(&context, Request(true));
    return reader->Finish().error_code();
  };
  EXPECT_EQ(submit(""), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(handler_.submitted.back().tenant, "acme");
  EXPECT_EQ(submit("other"), grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace bfio::router::vllm
