// A router and workers as an SGLang engine: what gateways do to them. What the API shares with vLLM's is in
// vllm_api_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/cluster.h"
#include "tests/testing/sglang_calls.h"

namespace bfio::testing::sglang {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kService[] = "/sglang.grpc.scheduler.SglangScheduler/";

class SglangApi : public ::testing::Test {
 protected:
  static ClusterOptions Options(std::vector<std::string> worker_flags) {
    ClusterOptions options;
    options.router_flags = {"--tokenizer=" + NumbersTokenizer(), "--max_waiting=8",
                            "--client_apis=bfio,sglang"};
    options.worker_flags = std::move(worker_flags);
    return options;
  }
  explicit SglangApi(std::vector<std::string> worker_flags = {"--c=0.0005", "--tl=0", "--slots=16",
                                                              "--max_sequence_tokens=100000"})
      : cluster_(Options(std::move(worker_flags))) {}
  void SetUp() override { ASSERT_TRUE(cluster_.ok()); }

  // All have ended, whether they were read or not.
  bool WaitUntilIdle() {
    return cluster_.WaitFor("all requests to end", [](const v1::ClusterState& state) {
      uint32_t running = state.waiting_requests();
      for (const v1::WorkerState& worker : state.workers())
        running += worker.active_requests() + worker.inflight_requests();
      return running == 0;
    });
  }

  Cluster cluster_;
  const std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(cluster_.address(), grpc::InsecureChannelCredentials());
  const std::unique_ptr<pb::SglangScheduler::Stub> stub_ = pb::SglangScheduler::NewStub(channel_);
};

// Steps slow enough to act between them.
class SlowSglangApi : public SglangApi {
 protected:
  SlowSglangApi() : SglangApi({"--c=0.03", "--tl=0", "--slots=4", "--kv_tokens=100000"}) {}
};

// Tokens that a model computes, so that equal requests have equal outputs: the protocol has no seed.
class ComputedSglangApi : public SglangApi {
 protected:
  ComputedSglangApi()
      : SglangApi({"--engine=cpu", "--model=tests/golden/qwen3", "--slots=4", "--kv_tokens=4096",
                   "--cpu_threads=1"}) {}

  // Through bfio.v1, greedy.
  Tokens Expected(uint32_t output) {
    v1::GenerateRequest own;
    for (uint32_t id = 1; id <= 7; ++id) own.mutable_token_ids()->add_ids(id);
    own.set_max_new_tokens(output);
    own.set_ignore_eos(true);
    const GenerateResult result = testing::Generate(cluster_.inference(), own);
    EXPECT_THAT(result.tokens, SizeIs(output));
    return result.tokens;
  }
};

TEST_F(ComputedSglangApi, BothApisGiveTheSameTokens) {
  const Tokens expected = Expected(40);
  for (const bool stream : {true, false}) {
    for (const uint32_t outputs : {1, 2}) {
      pb::GenerateRequest request = Request(40, stream);
      request.mutable_sampling_params()->set_n(outputs);
      const Outputs got = Generate(*stub_, request);
      ASSERT_TRUE(got.status.ok()) << got.status.error_message();
      ASSERT_THAT(got.ends, SizeIs(outputs));
      for (const auto& [index, end] : got.ends) {
        EXPECT_EQ(got.tokens.at(index), expected) << index;
        EXPECT_EQ(end.finish_reason(), "length");
        EXPECT_EQ(end.prompt_tokens(), 7u);
        EXPECT_EQ(end.completion_tokens(), 40u);
      }
    }
  }
}

TEST_F(ComputedSglangApi, StopTokensAndTextsEndOutputsAndAreNamed) {
  const Tokens all = Expected(20);
  size_t at = 3;
  while (std::find(all.begin(), all.begin() + at, all[at]) != all.begin() + at) ++at;
  const Tokens until(all.begin(), all.begin() + at + 1);
  pb::GenerateRequest request = Request(20);
  request.mutable_sampling_params()->add_stop_token_ids(all[at]);
  const Outputs by_token = Generate(*stub_, request);
  EXPECT_EQ(by_token.tokens.at(0), until);
  EXPECT_EQ(by_token.reason(), "stop");
  EXPECT_EQ(by_token.ends.at(0).matched_token_id(), all[at]);
  for (const bool stream : {true, false}) {
    request = Request(20, stream);
    const std::string text = absl::StrCat("<", all[at], ">");
    request.mutable_sampling_params()->add_stop(text);
    const Outputs by_text = Generate(*stub_, request);
    EXPECT_EQ(by_text.tokens.at(0), until);
    EXPECT_EQ(by_text.reason(), "stop");
    EXPECT_EQ(by_text.ends.at(0).matched_stop_str(), text);
  }
  EXPECT_TRUE(WaitUntilIdle()) << "the workers have stopped, too";
}

TEST_F(ComputedSglangApi, AWorkersDeathLosesAndRepeatsNothing) {
  constexpr uint32_t kOutput = 500;  // as many as the model has positions for
  const Tokens expected = Expected(kOutput);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 4; ++i)
    calls.push_back(std::make_unique<Call>(*stub_, Request(kOutput, /*stream=*/i % 2 == 0)));
  ASSERT_TRUE(calls[0]->Read());
  ASSERT_TRUE(calls[2]->Read());
  cluster_.workers()[0].Signal(SIGKILL);
  cluster_.workers()[0].Wait(absl::Seconds(30));
  for (const auto& call : calls) {
    const Outputs& outputs = call->End();
    ASSERT_TRUE(outputs.status.ok()) << outputs.status.error_message();
    EXPECT_EQ(outputs.tokens.at(0), expected);
    EXPECT_EQ(outputs.reason(), "length");
  }
}

TEST_F(SglangApi, TheRouterIsOneEngine) {
  grpc::ClientContext c1, c2, c3, c4, c5;
  pb::HealthCheckResponse health;
  ASSERT_TRUE(stub_->HealthCheck(&c1, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  pb::GetModelInfoResponse model;
  ASSERT_TRUE(stub_->GetModelInfo(&c2, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "numbers");
  EXPECT_GT(model.max_context_length(), 0);
  pb::GetServerInfoResponse server;
  ASSERT_TRUE(stub_->GetServerInfo(&c3, {}, &server).ok());
  EXPECT_EQ(server.server_args().fields().at("dp_size").number_value(), 1);
  EXPECT_EQ(server.server_args().fields().at("max_running_requests").number_value(), 32) << "of two workers";
  pb::GetLoadsResponse loads;
  ASSERT_TRUE(stub_->GetLoads(&c4, {}, &loads).ok());
  ASSERT_THAT(loads.loads(), SizeIs(1));
  EXPECT_EQ(loads.loads(0).max_running_requests(), 32);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("sglang.grpc.scheduler.SglangScheduler");
  grpc::health::v1::HealthCheckResponse status;
  ASSERT_TRUE(grpc::health::v1::Health::NewStub(channel_)->Check(&c5, request, &status).ok());
  EXPECT_EQ(status.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  EXPECT_EQ(RawCall(channel_, "/vllm.grpc.engine.VllmEngine/HealthCheck", "").second.error_code(),
            grpc::StatusCode::UNIMPLEMENTED)
      << "a gateway that probes finds one engine";
}

TEST_F(SlowSglangApi, AnAbortEndsEveryOutputWithWhatItHas) {
  pb::GenerateRequest request = Request(2000);
  request.set_request_id("victim");
  request.mutable_sampling_params()->set_n(2);
  Call call(*stub_, request);
  while (call.outputs().tokens.size() < 2) ASSERT_TRUE(call.Read());
  const auto abort = [&](const std::string& id) {
    pb::AbortRequest request;
    request.set_request_id(id);
    pb::AbortResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->Abort(&context, request, &response).ok());
    return response.success();
  };
  EXPECT_FALSE(abort("nobody"));
  EXPECT_TRUE(abort("victim"));
  const Outputs& outputs = call.End();
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  for (const uint32_t index : {0u, 1u}) {
    EXPECT_EQ(outputs.reason(index), "abort");
    EXPECT_EQ(outputs.ends.at(index).completion_tokens(), outputs.tokens.at(index).size());
  }
  EXPECT_TRUE(WaitUntilIdle());
}

TEST_F(SlowSglangApi, DeadlinesAndCancellationsFreeTheSlots) {
  pb::GenerateRequest request = Request(2000);
  request.mutable_sampling_params()->set_n(2);
  EXPECT_EQ(Call(*stub_, request, kSlowdown * absl::Seconds(1)).End().status.error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(WaitUntilIdle());
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) {
    request = Request(3000, /*stream=*/i % 4 != 0);
    request.mutable_sampling_params()->set_n(1 + i % 3);
    calls.push_back(std::make_unique<Call>(*stub_, request));
    if (i == 1) calls.back()->Read();
    if (i % 2 == 0) calls.back()->Cancel();
  }
  calls.clear();  // the others, which have not been read
  EXPECT_TRUE(WaitUntilIdle());
  EXPECT_TRUE(Generate(*stub_, Request(3)).status.ok());
}

TEST_F(SlowSglangApi, ATenantsRequestsAreItsOwn) {
  pb::GenerateRequest request = Request(100);
  request.set_request_id("mine");
  const auto as = [](const std::string& tenant, grpc::ClientContext& context) -> grpc::ClientContext* {
    context.AddMetadata("bfio-tenant", tenant);
    return &context;
  };
  grpc::ClientContext acme, aborting, again;
  const auto reader = stub_->Generate(as("acme", acme), request);
  pb::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  pb::AbortRequest abort;
  abort.set_request_id("mine");
  pb::AbortResponse response;
  ASSERT_TRUE(stub_->Abort(as("zeta", aborting), abort, &response).ok());
  EXPECT_FALSE(response.success()) << "another tenant's is not found";
  ASSERT_TRUE(stub_->Abort(as("acme", again), abort, &response).ok());
  EXPECT_TRUE(response.success());
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(message.complete().finish_reason(), "abort");
}

TEST_F(SglangApi, GarbageIsRefusedAndOtherCallsContinue) {
  Call bystander(*stub_, Request(400));
  const std::string large(400'000, '\xff');
  for (const char* method : {"Generate", "Abort", "HealthCheck", "GetModelInfo", "GetServerInfo", "GetLoads",
                             "GetTokenizer", "SubscribeKvEvents"}) {
    for (const std::string& bytes : {std::string("\xff"), std::string("\x0a\x7f"), large}) {
      const auto [messages, status] = RawCall(channel_, absl::StrCat(kService, method), bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
      EXPECT_THAT(messages, SizeIs(0));
    }
  }
  for (const char* method : {"Embed", "FlushCache", "LoadLoRAAdapter"}) {
    EXPECT_EQ(RawCall(channel_, absl::StrCat(kService, method), "").second.error_code(),
              grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_TRUE(bystander.End().status.ok());
  EXPECT_THAT(bystander.outputs().tokens.at(0), SizeIs(400));
}

TEST_F(SglangApi, WhatIsTooLargeIsRefusedByName) {
  const auto refused = [&](const pb::GenerateRequest& request, const std::string& name) {
    const grpc::Status status = Generate(*stub_, request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  };
  pb::GenerateRequest request = Request(3);
  request.mutable_tokenized()->mutable_input_ids()->Resize(140'000, 1);
  refused(request, "the number of token_ids is 140000");
  request = Request(60'000);
  request.mutable_tokenized()->mutable_input_ids()->Resize(100'000, 1);
  refused(request, "prompt + max_new_tokens");
  request = Request(3);
  request.mutable_tokenized()->clear_input_ids();
  request.mutable_tokenized()->set_original_text("text");
  refused(request, "does not tokenize");
  request = Request(3);
  request.set_data_parallel_rank(2);
  refused(request, "data_parallel_rank is 2; it must be below 2");
  request = Request(3);
  request.set_return_logprob(true);
  request.set_logprob_start_len(-1);
  refused(request, "logprobs is not supported");
}

// Lines "METHOD STATUS BYTES", the bytes of the request in hexadecimal; '#' begins a comment.
TEST_F(SglangApi, RecordedSessionsOfSmgGetTheirAnswers) {
  int calls = 0;
  for (const char* session : {"start", "chat", "refused"}) {
    std::ifstream in(absl::StrCat("tests/integration/smg_sessions/sglang_", session, ".txt"));
    ASSERT_TRUE(in.good()) << session;
    for (std::string line; std::getline(in, line);) {
      if (line.empty() || line[0] == '#') continue;
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      ASSERT_GE(words.size(), 2u) << line;
      const std::string bytes = words.size() > 2 ? absl::HexStringToBytes(words[2]) : "";
      const bool endless = words[0] == absl::StrCat(kService, "SubscribeKvEvents");
      const auto [messages, status] = RawCall(channel_, words[0], bytes, endless ? 1 : 1 << 20);
      ++calls;
      EXPECT_EQ(absl::StatusCodeToString(FromGrpcStatus(status).code()), words[1])
          << session << ": " << words[0] << ": " << status.error_message();
      if (words[0] != absl::StrCat(kService, "Generate") || !status.ok()) continue;
      pb::GenerateRequest request;
      ASSERT_TRUE(request.ParseFromString(bytes));
      Outputs outputs;
      for (const std::string& message : messages) {
        pb::GenerateResponse response;
        ASSERT_TRUE(response.ParseFromString(message));
        EXPECT_EQ(response.request_id(), request.request_id());
        outputs.Add(response);
      }
      EXPECT_THAT(outputs.ends, SizeIs(request.sampling_params().n())) << line;
      for (const auto& [index, end] : outputs.ends) {
        EXPECT_EQ(end.completion_tokens(), outputs.tokens.at(index).size());
        EXPECT_LE(end.completion_tokens(), request.sampling_params().max_new_tokens());
      }
    }
  }
  EXPECT_GE(calls, 36);
}

}  // namespace
}  // namespace bfio::testing::sglang
