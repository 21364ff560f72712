// SGLang's scheduler API in front of a fake router state. vllm_service_test.cc tests what it shares
// with vLLM's: errors, aborts of several outputs, streams of tokenizers and loads, and
// authentication.
#include "router/frontend/sglang/sglang_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/net/status.h"
#include "engines/sglang.grpc.pb.h"
#include "tests/testing/loopback_server.h"
#include "tests/unit/router/frontend/fake_handler.h"

namespace bfio::router::sglang {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Tokens = std::vector<uint32_t>;
using Messages = std::vector<pb::GenerateResponse>;

class SglangServiceTest : public ::testing::Test {
 protected:
  SglangServiceTest() { handler_.serving = {true, 1000}; }
  ~SglangServiceTest() override { service_.Close(); }

  static gateway::GatewayOptions Options() {
    ModelFiles model;
    model.directory = "/models/letters";
    model.vocab_size = 3;
    model.eos_token_ids = {2};
    model.text = std::make_shared<const TokenText>(
        *TokenText::Parse(R"({"model":{"vocab":{"a":0,"b":1,"c":2}},"decoder":{"type":"ByteLevel"}})"));
    gateway::GatewayOptions options;
    options.model_name = "letters";
    options.model = std::make_shared<const ModelSource>(std::make_shared<const ModelFiles>(std::move(model)));
    options.new_request_id = [] { return "drawn"; };
    return options;
  }
  static pb::GenerateRequest Request(bool stream) {
    pb::GenerateRequest request;
    request.set_request_id("r");
    request.mutable_tokenized()->add_input_ids(2);
    request.mutable_sampling_params()->set_max_new_tokens(4);
    request.set_stream(stream);
    return request;
  }
  absl::Status Generate(const pb::GenerateRequest& request, Messages& messages) {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    for (pb::GenerateResponse message; reader->Read(&message);) messages.push_back(message);
    return FromGrpcStatus(reader->Finish());
  }
  pb::AbortResponse Abort(const std::string& id) {
    pb::AbortRequest request;
    request.set_request_id(id);
    pb::AbortResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->Abort(&context, request, &response).ok());
    return response;
  }

  FakeHandler handler_;
  Authenticator authenticator_{"client API", nullptr};
  FirstMessages messages_;
  SglangService service_{&handler_, &authenticator_, &messages_, Options()};
  testing::LoopbackServer server_{&service_};
  const std::unique_ptr<pb::SglangScheduler::Stub> stub_ = pb::SglangScheduler::NewStub(server_.channel());
};

TEST_F(SglangServiceTest, AStreamIsChunksAndAnEnd) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    Deliver(*sink, {1, 2});
    Deliver(*sink, {0});
    End(*sink, absl::OkStatus(), FinishOf(FinishReason::kLength));
    return absl::OkStatus();
  };
  Messages messages;
  ASSERT_TRUE(Generate(Request(true), messages).ok());
  ASSERT_GE(messages.size(), 2u);
  Tokens tokens;
  for (size_t i = 0; i + 1 < messages.size(); ++i) {
    ASSERT_TRUE(messages[i].has_chunk());
    EXPECT_EQ(messages[i].request_id(), "r");
    const pb::GenerateStreamChunk& chunk = messages[i].chunk();
    tokens.insert(tokens.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    EXPECT_EQ(chunk.completion_tokens(), tokens.size()) << "a sum, unlike vLLM's";
    EXPECT_EQ(chunk.prompt_tokens(), 1u);
    EXPECT_EQ(chunk.cached_tokens(), 0u);
    EXPECT_EQ(chunk.index(), 0u);
  }
  EXPECT_THAT(tokens, ElementsAre(1, 2, 0));
  ASSERT_TRUE(messages.back().has_complete());
  EXPECT_EQ(messages.back().request_id(), "r");
  const pb::GenerateComplete& complete = messages.back().complete();
  EXPECT_THAT(complete.output_ids(), IsEmpty()) << "the chunks had them";
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_EQ(complete.prompt_tokens(), 1u);
  EXPECT_EQ(complete.completion_tokens(), 3u);
  EXPECT_EQ(complete.cached_tokens(), 0u);
  EXPECT_EQ(complete.matched_stop_case(), pb::GenerateComplete::MATCHED_STOP_NOT_SET);
}

TEST_F(SglangServiceTest, AnyTokenThatEndsAnOutputIsNamed) {
  FinishReason reason = FinishReason::kStop;
  handler_.on_submit = [&](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    Deliver(*sink, {0, 2});
    End(*sink, absl::OkStatus(), FinishOf(reason));
    return absl::OkStatus();
  };
  pb::GenerateRequest request = Request(false);
  request.clear_request_id();
  Messages messages;
  ASSERT_TRUE(Generate(request, messages).ok());
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].request_id(), "drawn");
  const pb::GenerateComplete& complete = messages[0].complete();
  EXPECT_THAT(complete.output_ids(), ElementsAre(0, 2));
  EXPECT_EQ(complete.finish_reason(), "stop");
  EXPECT_EQ(complete.completion_tokens(), 2u);
  EXPECT_EQ(complete.matched_stop_case(), pb::GenerateComplete::kMatchedTokenId) << "the model's own end";
  EXPECT_EQ(complete.matched_token_id(), 2u);
  reason = FinishReason::kLength;
  messages.clear();
  ASSERT_TRUE(Generate(request, messages).ok());
  EXPECT_EQ(messages[0].complete().matched_stop_case(), pb::GenerateComplete::MATCHED_STOP_NOT_SET);
}

TEST_F(SglangServiceTest, ATextThatEndsTheOutputIsNamed) {
  handler_.on_submit = [](core::RequestId, const std::shared_ptr<TokenSink>& sink) {
    EXPECT_EQ(sink->Deliver(0, Tokens{0, 0, 1, 2}, {}, absl::UnixEpoch()), TokenSink::Delivery::kEnough);
    End(*sink, absl::OkStatus(), FinishOf(FinishReason::kStop));
    return absl::OkStatus();
  };
  pb::GenerateRequest request = Request(false);
  request.mutable_sampling_params()->add_stop("ab");
  Messages messages;
  ASSERT_TRUE(Generate(request, messages).ok());
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_THAT(messages[0].complete().output_ids(), ElementsAre(0, 0, 1));
  EXPECT_EQ(messages[0].complete().matched_stop_str(), "ab");
}

TEST_F(SglangServiceTest, SeveralOutputsAreSeveralRequests) {
  std::vector<std::shared_ptr<TokenSink>> sinks;
  handler_.on_submit = [&](core::RequestId, std::shared_ptr<TokenSink> sink) {
    sinks.push_back(std::move(sink));
    if (sinks.size() < 3) return absl::OkStatus();
    const std::vector<std::shared_ptr<TokenSink>> outputs = std::exchange(sinks, {});
    for (uint32_t i = 0; i < 3; ++i) Deliver(*outputs[i], {i});
    End(*outputs[1], absl::OkStatus(), FinishOf(FinishReason::kLength));
    Deliver(*outputs[2], {7});
    End(*outputs[2], absl::OkStatus(), FinishOf(FinishReason::kAbort));
    End(*outputs[0], absl::OkStatus(), FinishOf(FinishReason::kLength));
    return absl::OkStatus();
  };
  for (const bool stream : {true, false}) {
    pb::GenerateRequest request = Request(stream);
    request.mutable_sampling_params()->set_n(3);
    Messages messages;
    ASSERT_TRUE(Generate(request, messages).ok());
    std::vector<Tokens> tokens(3);
    std::vector<std::string> reasons(3);
    for (const pb::GenerateResponse& message : messages) {
      EXPECT_EQ(message.request_id(), "r") << "the call's, not the output's";
      const auto add = [&](uint32_t index, const auto& ids) {
        EXPECT_EQ(reasons.at(index), "") << "nothing after its end";
        tokens.at(index).insert(tokens.at(index).end(), ids.begin(), ids.end());
      };
      if (message.has_chunk()) {
        add(message.chunk().index(), message.chunk().token_ids());
        EXPECT_EQ(message.chunk().completion_tokens(), tokens.at(message.chunk().index()).size());
        continue;
      }
      add(message.complete().index(), message.complete().output_ids());
      EXPECT_EQ(message.complete().completion_tokens(), tokens.at(message.complete().index()).size());
      reasons.at(message.complete().index()) = message.complete().finish_reason();
    }
    EXPECT_THAT(tokens, ElementsAre(Tokens{0}, Tokens{1}, Tokens{2, 7}));
    EXPECT_THAT(reasons, ElementsAre("length", "length", "abort"));
    if (stream) continue;
    ASSERT_THAT(messages, SizeIs(3));
    for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(messages[i].complete().index(), i) << "in order";
  }
  ASSERT_THAT(handler_.submitted, SizeIs(6));
  EXPECT_EQ(handler_.calls, 2) << "nothing comes between the outputs of a call";
  EXPECT_EQ(handler_.submitted[2].request_id, "r");
  EXPECT_EQ(handler_.submitted[2].output, 2u);
}

TEST_F(SglangServiceTest, AnAbortReportsWhetherTheRequestExisted) {
  EXPECT_TRUE(Abort("r").success());
  EXPECT_EQ(handler_.aborted->request_id, "r");
  handler_.abort_finds = false;
  const pb::AbortResponse none = Abort("other");
  EXPECT_FALSE(none.success());
  EXPECT_EQ(none.message(), "no such request");
}

TEST_F(SglangServiceTest, ModelServerAndLoadsAreReported) {
  handler_.loads.version = "1.2.3";
  handler_.loads.timestamp = absl::UnixEpoch() + absl::Hours(1);
  handler_.loads.loads = {{.rank = 0,
                           .running_requests = 3,
                           .waiting_requests = 2,
                           .waiting_tokens = 700,
                           .max_tokens = 100,
                           .slots = 6},
                          {.rank = 1,
                           .running_requests = 1,
                           .waiting_requests = 2,
                           .waiting_tokens = 700,
                           .used_tokens = 50,
                           .max_tokens = 100,
                           .tokens_per_second = 4,
                           .slots = 6}};
  grpc::ClientContext c0, c1, c2, c3, c4;
  pb::HealthCheckResponse health;
  ASSERT_TRUE(stub_->HealthCheck(&c0, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  pb::GetModelInfoResponse model;
  ASSERT_TRUE(stub_->GetModelInfo(&c1, {}, &model).ok());
  EXPECT_EQ(model.model_path(), "/models/letters");
  EXPECT_EQ(model.served_model_name(), "letters");
  EXPECT_EQ(model.max_context_length(), 1000);
  pb::GetServerInfoResponse server;
  ASSERT_TRUE(stub_->GetServerInfo(&c2, {}, &server).ok());
  const auto& args = server.server_args().fields();
  EXPECT_EQ(args.at("dp_size").number_value(), 1);
  EXPECT_EQ(args.at("max_running_requests").number_value(), 12);
  EXPECT_EQ(server.active_requests(), 6);
  EXPECT_EQ(server.server_type(), "grpc");
  EXPECT_EQ(server.sglang_version(), "1.2.3");
  EXPECT_EQ(server.max_total_num_tokens(), 200);
  EXPECT_GE(server.uptime_seconds(), 0);
  EXPECT_LE(server.start_time().seconds(), 3600);
  pb::GetLoadsResponse loads;
  pb::GetLoadsRequest request;
  request.add_include("core");
  ASSERT_TRUE(stub_->GetLoads(&c3, request, &loads).ok());
  EXPECT_EQ(loads.dp_rank_count(), 1);
  EXPECT_EQ(loads.version(), "1.2.3");
  EXPECT_EQ(loads.timestamp(), "1970-01-01T01:00:00.000000+00:00");
  ASSERT_THAT(loads.loads(), SizeIs(1));
  EXPECT_EQ(loads.loads(0).num_running_reqs(), 4);
  EXPECT_EQ(loads.loads(0).num_waiting_reqs(), 2);
  EXPECT_EQ(loads.loads(0).max_running_requests(), 12);
  EXPECT_EQ(loads.loads(0).num_waiting_uncached_tokens(), 700);
  EXPECT_EQ(loads.aggregate().total_running_reqs(), 4);
  EXPECT_EQ(loads.aggregate().total_waiting_reqs(), 2);
  EXPECT_EQ(loads.aggregate().total_reqs(), 6);
  EXPECT_EQ(loads.aggregate().avg_token_usage(), 0.25);
  EXPECT_EQ(loads.aggregate().avg_throughput(), 4);
  EXPECT_EQ(loads.aggregate().avg_utilization(), 0.25);
  request.set_dp_rank(1);
  EXPECT_EQ(stub_->GetLoads(&c4, request, &loads).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace bfio::router::sglang
