// A router and workers that act as a vLLM engine, for correct and for faulty gateways.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <signal.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "engines/vllm.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/cluster.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class VllmApi : public ::testing::Test {
 protected:
  static ClusterOptions Options(std::vector<std::string> worker_flags = {"--c=0.0005", "--tl=0", "--slots=16",
                                                                         "--max_sequence_tokens=100000"}) {
    return {.router_flags = {"--tokenizer=" + NumbersTokenizer(), "--max_waiting=8"},
            .worker_flags = std::move(worker_flags)};
  }
  explicit VllmApi(const ClusterOptions& options = Options()) : cluster_(options) {}
  void SetUp() override { ASSERT_TRUE(cluster_.ok()); }

  std::shared_ptr<grpc::Channel> NewChannel() {
    return grpc::CreateChannel(cluster_.address(), grpc::InsecureChannelCredentials());
  }
  Cluster cluster_;
  const std::shared_ptr<grpc::Channel> channel_ = NewChannel();
  const std::unique_ptr<pb::VllmEngine::Stub> stub_ = pb::VllmEngine::NewStub(channel_);
};

// Three ranks of two slots, with steps slow enough to act between them.
class RanksOfVllmApi : public VllmApi {
 protected:
  static ClusterOptions ThreeRanks() {
    ClusterOptions options = Options({"--c=0.01", "--tl=0", "--slots=2", "--kv_tokens=100000"});
    options.worker_processes = 3;
    options.router_flags = {"--max_waiting=100"};
    return options;
  }
  RanksOfVllmApi() : VllmApi(ThreeRanks()) {}

  std::unique_ptr<Call> Start(std::optional<int32_t> rank, uint32_t output) {
    pb::GenerateRequest request = Request(output);
    if (rank) request.set_data_parallel_rank(*rank);
    return std::make_unique<Call>(*stub_, request);
  }
  // Requests on each rank.
  static std::map<uint32_t, uint32_t> ByRank(const v1::ClusterState& state) {
    std::map<uint32_t, uint32_t> running;
    for (const v1::WorkerState& worker : state.workers()) {
      if (worker.has_rank()) running[worker.rank()] = worker.active_requests() + worker.inflight_requests();
    }
    return running;
  }
};

// Steps slow enough to act between them.
class SlowVllmApi : public VllmApi {
 protected:
  SlowVllmApi() : VllmApi(Options({"--c=0.03", "--tl=0", "--slots=4", "--kv_tokens=100000"})) {}
};

// --- a correct gateway ---

TEST_F(VllmApi, BothApisGiveTheSameTokens) {
  v1::GenerateRequest own;
  for (uint32_t id = 1; id <= 7; ++id) own.mutable_token_ids()->add_ids(id);
  own.set_max_new_tokens(40);
  own.set_ignore_eos(true);
  own.mutable_sampling()->set_seed(5);
  own.mutable_sampling()->set_temperature(1);
  const GenerateResult expected = testing::Generate(cluster_.inference(), own);
  ASSERT_EQ(expected.tokens.size(), 40u);
  const Outputs streamed = Generate(*stub_, Request(40)), whole = Generate(*stub_, Request(40, false));
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(streamed.tokens.at(0), expected.tokens);
  EXPECT_EQ(whole.tokens.at(0), expected.tokens);
  for (const Outputs* outputs : {&streamed, &whole}) {
    const pb::GenerateComplete& end = outputs->ends.at(0);
    EXPECT_EQ(end.finish_reason(), "length");
    EXPECT_EQ(end.prompt_tokens(), 7u);
    EXPECT_EQ(end.completion_tokens(), 40u);
  }
}

TEST_F(VllmApi, OutputsAreThoseOfRequestsWithFollowingSeeds) {
  for (const bool stream : {true, false}) {
    pb::GenerateRequest request = Request(20, stream);
    request.mutable_sampling_params()->set_n(5);
    const Outputs several = Generate(*stub_, request);
    ASSERT_TRUE(several.status.ok()) << several.status.error_message();
    ASSERT_THAT(several.ends, SizeIs(5));
    for (uint32_t index = 0; index < 5; ++index) {
      pb::GenerateRequest one = Request(20);
      one.mutable_sampling_params()->set_seed(5 + static_cast<int>(index));
      EXPECT_EQ(several.tokens.at(index), Generate(*stub_, one).tokens.at(0)) << index;
      EXPECT_EQ(several.reason(index), "length");
    }
    EXPECT_NE(several.tokens.at(0), several.tokens.at(1));
  }
}

TEST_F(VllmApi, StopTokensAndTextsEndOutputsAndAreNamed) {
  const Tokens all = Generate(*stub_, Request(20)).tokens.at(0);
  const Tokens first_four(all.begin(), all.begin() + 4);
  pb::GenerateRequest request = Request(20);
  request.mutable_sampling_params()->add_stop_token_ids(all[3]);
  const Outputs by_token = Generate(*stub_, request);
  EXPECT_EQ(by_token.tokens.at(0), first_four);
  EXPECT_EQ(by_token.reason(), "stop");
  EXPECT_EQ(by_token.ends.at(0).matched_token_id(), all[3]);
  for (const bool stream : {true, false}) {
    request = Request(20, stream);
    // A stop text from the middle of one token to the middle of the next.
    const std::string text = absl::StrCat("><", all[3]);
    request.mutable_sampling_params()->add_stop("never");
    request.mutable_sampling_params()->add_stop(text);
    const Outputs by_text = Generate(*stub_, request);
    EXPECT_EQ(by_text.tokens.at(0), first_four);
    EXPECT_EQ(by_text.reason(), "stop");
    EXPECT_EQ(by_text.ends.at(0).matched_stop_str(), text);
    EXPECT_EQ(by_text.ends.at(0).completion_tokens(), 4u);
  }
  EXPECT_TRUE(cluster_.WaitUntilIdle()) << "the workers have stopped, too";
}

TEST_F(VllmApi, TheRouterIsOneEngine) {
  grpc::ClientContext c1, c2, c3, c4;
  pb::HealthCheckResponse health;
  ASSERT_TRUE(stub_->HealthCheck(&c1, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  pb::GetModelInfoResponse model;
  ASSERT_TRUE(stub_->GetModelInfo(&c2, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "numbers");
  EXPECT_EQ(cluster_.State().served_model_name(), "numbers") << "the label of vllm:num_requests_waiting";
  EXPECT_TRUE(model.is_generation());
  EXPECT_GT(model.max_context_length(), 0u);
  pb::GetServerInfoResponse server;
  ASSERT_TRUE(stub_->GetServerInfo(&c3, {}, &server).ok());
  EXPECT_EQ(server.data_parallel_size(), 1);
  EXPECT_EQ(server.max_num_seqs(), 32) << "of two workers";
  pb::GetLoadsResponse loads;
  ASSERT_TRUE(stub_->GetLoads(&c4, {}, &loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.loads(0).max_running_requests(), 32);
  const auto health_stub = grpc::health::v1::Health::NewStub(channel_);
  grpc::ClientContext c5;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("vllm.grpc.engine.VllmEngine");
  grpc::health::v1::HealthCheckResponse status;
  ASSERT_TRUE(health_stub->Check(&c5, request, &status).ok());
  EXPECT_EQ(status.status(), grpc::health::v1::HealthCheckResponse::SERVING);
}

TEST_F(SlowVllmApi, LoadRecordsFollowTheLoad) {
  grpc::ClientContext context;
  common_pb::SubscribeKvEventsRequest subscribe;
  subscribe.set_load_records_before_first_batch(true);
  const auto records = stub_->SubscribeKvEvents(&context, subscribe);
  common_pb::KvEventBatch batch;
  ASSERT_TRUE(records->Read(&batch));
  EXPECT_EQ(batch.load().running_requests(), 0u);
  Call running(*stub_, Request(2000));
  ASSERT_TRUE(running.Read());
  while (batch.load().running_requests() == 0) ASSERT_TRUE(records->Read(&batch));
  EXPECT_EQ(batch.load().running_requests(), 1u);
  EXPECT_GT(batch.load().num_used_tokens(), 0);
  EXPECT_EQ(batch.dp_rank(), 0);
  EXPECT_EQ(batch.sequence_number(), 0u);
  context.TryCancel();
}

TEST_F(SlowVllmApi, MaxTokensThatAreNotSetAreAllThatFits) {
  pb::GenerateRequest request = Request(1);
  request.mutable_sampling_params()->clear_max_tokens();
  Call call(*stub_, request);
  EXPECT_TRUE(call.Read());
}

TEST_F(SlowVllmApi, AnAbortEndsEveryOutputWithWhatItHas) {
  pb::GenerateRequest request = Request(2000);
  request.set_request_id("victim");
  request.mutable_sampling_params()->set_n(2);
  Call call(*stub_, request);
  while (call.outputs().tokens.size() < 2) ASSERT_TRUE(call.Read());
  pb::AbortRequest abort;
  abort.add_request_ids("victim");
  abort.add_request_ids("nobody");
  pb::AbortResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Abort(&context, abort, &response).ok());
  const Outputs& outputs = call.End();
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  for (const uint32_t index : {0u, 1u}) {
    EXPECT_EQ(outputs.reason(index), "abort");
    EXPECT_EQ(outputs.ends.at(index).completion_tokens(), outputs.tokens.at(index).size());
  }
  EXPECT_TRUE(cluster_.WaitUntilIdle());
}

TEST_F(SlowVllmApi, ADeadlineEndsTheCallAndTheRequests) {
  pb::GenerateRequest request = Request(2000);
  request.mutable_sampling_params()->set_n(2);
  Call call(*stub_, request, kSlowdown * absl::Seconds(1));
  EXPECT_EQ(call.End().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(cluster_.WaitUntilIdle());
}

TEST_F(SlowVllmApi, AWorkersDeathLosesAndRepeatsNothing) {
  const Tokens expected = Generate(*stub_, Request(60)).tokens.at(0);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 4; ++i) {
    pb::GenerateRequest request = Request(60, /*stream=*/i % 2 == 0);
    calls.push_back(std::make_unique<Call>(*stub_, request));
  }
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

TEST_F(SlowVllmApi, ARestartedRouterServesTheGatewayAgain) {
  Call call(*stub_, Request(2000));
  ASSERT_TRUE(call.Read());
  cluster_.KillRouter();
  EXPECT_EQ(call.End().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  cluster_.StartRouterAgain();
  ASSERT_TRUE(cluster_.WaitFor("an epoch of all workers", [](const v1::ClusterState& state) {
    return state.groups_size() == 1 && state.groups(0).ready() && state.workers_size() == 2;
  }));
  const auto again = pb::VllmEngine::NewStub(NewChannel());
  const Outputs outputs = Generate(*again, Request(3));
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  EXPECT_THAT(outputs.tokens.at(0), SizeIs(3));
}

// --- recorded sessions of SMG ---

TEST_F(VllmApi, RecordedSessionsOfSmgGetTheirAnswers) {
  int calls = 0;
  for (const char* session : {"start", "chat", "refused"}) {
    calls += ReplaySession<pb::GenerateRequest, pb::GenerateResponse>(
        channel_, session, "/vllm.grpc.engine.VllmEngine/",
        [](const auto& request) { return request.sampling_params().max_tokens(); });
  }
  EXPECT_GE(calls, 24);
}

// --- a faulty gateway ---

TEST_F(VllmApi, GarbageIsRefusedAndOtherCallsContinue) {
  Call bystander(*stub_, Request(400));
  const std::string large(400'000, '\xff');
  for (const char* method : {"Generate", "Abort", "HealthCheck", "GetModelInfo", "GetServerInfo", "GetLoads",
                             "GetTokenizer", "SubscribeKvEvents"}) {
    const std::string path = std::string("/vllm.grpc.engine.VllmEngine/") + method;
    for (const std::string& bytes : {std::string("\xff"), std::string("\x0a\x7f"), large}) {
      const auto [messages, status] = RawCall(channel_, path, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
      EXPECT_THAT(messages, SizeIs(0));
    }
  }
  EXPECT_EQ(RawCall(channel_, "/vllm.grpc.engine.VllmEngine/Embed", "").second.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(bystander.End().status.ok());
  EXPECT_THAT(bystander.outputs().tokens.at(0), SizeIs(400));
}

TEST_F(RanksOfVllmApi, ANamedRankTakesItsRequestsAndNoOtherDoes) {
  std::vector<std::unique_ptr<Call>> held;
  for (int i = 0; i < 5; ++i) held.push_back(Start(1, 60));
  ASSERT_TRUE(cluster_.WaitFor("the rank to be full", [](const v1::ClusterState& state) {
    return ByRank(state)[1] == 2 && state.waiting_requests() == 3;
  }));
  // Requests that name no rank run on the others.
  std::vector<std::unique_ptr<Call>> free;
  for (int i = 0; i < 4; ++i) free.push_back(Start(std::nullopt, 10));
  for (const auto& call : free) EXPECT_EQ(call->End().reason(), "length");
  const v1::ClusterState state = cluster_.State();
  EXPECT_EQ(ByRank(state), (std::map<uint32_t, uint32_t>{{0, 0}, {1, 2}, {2, 0}}));
  EXPECT_EQ(state.waiting_requests(), 3u) << "free ranks do not take them";
  pb::GetLoadsResponse loads;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->GetLoads(&context, {}, &loads).ok());
  EXPECT_EQ(loads.loads(0).num_waiting_uncached_tokens(), 3 * Request(60).tokenized().input_ids_size());
  for (const auto& call : held) {
    EXPECT_EQ(call->End().reason(), "length");
    EXPECT_THAT(call->outputs().tokens.at(0), SizeIs(60));
  }
}

TEST_F(RanksOfVllmApi, ARankThatHasLeftEndsWhatWaitsForIt) {
  std::vector<std::unique_ptr<Call>> running, waiting;
  for (int i = 0; i < 2; ++i) running.push_back(Start(2, 2000));
  ASSERT_TRUE(cluster_.WaitFor("the rank to be full",
                               [](const v1::ClusterState& state) { return ByRank(state)[2] == 2; }));
  for (int i = 0; i < 2; ++i) waiting.push_back(Start(2, 2000));
  ASSERT_TRUE(cluster_.WaitFor("two to wait", [](const v1::ClusterState& state) {
    return ByRank(state)[2] == 2 && state.waiting_requests() == 2;
  }));
  // Ranks have consecutive numbers, so whichever rank leaves, number 2 no longer exists.
  cluster_.workers()[0].Signal(SIGKILL);
  for (const auto& call : waiting) {
    const grpc::Status& status = call->End().status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("data_parallel_rank 2 has left"));
  }
  pb::GenerateRequest request = Request(5);
  request.set_data_parallel_rank(2);
  const Outputs refused = Generate(*stub_, request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("data_parallel_rank is 2; it must be below 2"));
}

// Two groups of one rank each; a group without its rank is given up after --restart_settle.
class GroupsOfVllmApi : public VllmApi {
 protected:
  static ClusterOptions TwoGroups(const std::string& settle) {
    ClusterOptions options = Options({"--c=0.01", "--tl=0", "--slots=2", "--kv_tokens=100000"});
    options.router_flags = {"--max_waiting=100", "--restart_settle=" + settle};
    options.groups = 2;
    options.more_flags = {{"--group=0"}, {"--group=1"}};
    return options;
  }
  explicit GroupsOfVllmApi(const std::string& settle = "1s") : VllmApi(TwoGroups(settle)) {}

  std::unique_ptr<Call> Start(int32_t rank) {
    pb::GenerateRequest request = Request(2000);
    request.set_data_parallel_rank(rank);
    return std::make_unique<Call>(*stub_, request);
  }
  void LoseTheSecond() {
    cluster_.workers()[1].Signal(SIGKILL);
    ASSERT_TRUE(
        cluster_.WaitFor("the loss", [](const v1::ClusterState& state) { return Serving(state) == 1; }));
  }
};

TEST_F(GroupsOfVllmApi, WhatIsHeldToAGroupThatIsGivenUpEnds) {
  std::vector<std::unique_ptr<Call>> held;
  for (int i = 0; i < 4; ++i) held.push_back(Start(1));
  const std::unique_ptr<Call> elsewhere = Start(0);
  ASSERT_TRUE(elsewhere->Read());
  ASSERT_TRUE(cluster_.WaitFor("two to run and two to wait", [](const v1::ClusterState& state) {
    return Running(state) == 3 && state.waiting_requests() == 2;
  }));
  LoseTheSecond();
  for (const auto& call : held) {
    const grpc::Status& status = call->End().status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("data_parallel_rank 1 has left"));
  }
  EXPECT_TRUE(elsewhere->Read());
  const Outputs late = Start(1)->End();
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(late.status.error_message(), HasSubstr("data_parallel_rank is 1; it must be below 1"));
}

class PatientGroupsOfVllmApi : public GroupsOfVllmApi {
 protected:
  PatientGroupsOfVllmApi() : GroupsOfVllmApi("60s") {}
};

TEST_F(PatientGroupsOfVllmApi, ARankThatMayComeBackIsUnavailable) {
  LoseTheSecond();
  const Outputs refused = Start(1)->End();
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("data_parallel_rank is 1; "));
  EXPECT_TRUE(Start(0)->Read());
}

TEST_F(VllmApi, WhatIsTooLargeIsRefusedByName) {
  const auto refused = [&](const pb::GenerateRequest& request, const std::string& name) {
    const grpc::Status status = Generate(*stub_, request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  };
  pb::GenerateRequest request = Request(3);
  request.set_request_id(std::string(100'000, 'i'));
  refused(request, "request_id's length is 100000");
  request = Request(3);
  request.mutable_tokenized()->mutable_input_ids()->Resize(140'000, 1);
  refused(request, "the number of token_ids is 140000");
  request = Request(60'000);
  request.mutable_tokenized()->mutable_input_ids()->Resize(100'000, 1);
  refused(request, "prompt + max_new_tokens");
  request = Request(3);
  request.set_data_parallel_rank(2);
  refused(request, "data_parallel_rank is 2; it must be below 2");
}

TEST_F(SlowVllmApi, ALiveRequestIdIsTakenWhateverTheApi) {
  pb::GenerateRequest request = Request(2000);
  request.set_request_id("mine");
  Call running(*stub_, request);
  ASSERT_TRUE(running.Read());
  EXPECT_EQ(Generate(*stub_, request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  // One refused output is enough to refuse all of them.
  request.set_request_id("other");
  Call second(*stub_, request);
  ASSERT_TRUE(second.Read());
  request.mutable_sampling_params()->set_n(3);
  EXPECT_EQ(Generate(*stub_, request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  running.Cancel();
  second.Cancel();
  EXPECT_TRUE(cluster_.WaitUntilIdle());
}

TEST_F(SlowVllmApi, AnIdIsTakenUntilTheLastOutputEnds) {
  const uint32_t first = Generate(*stub_, Request(1)).tokens.at(0).at(0);
  pb::GenerateRequest request = Request(2000);
  request.set_request_id("mine");
  request.mutable_sampling_params()->set_n(2);
  // The other output has another seed, so it continues.
  request.mutable_sampling_params()->add_stop_token_ids(first);
  Call call(*stub_, request);
  while (!call.outputs().ends.contains(0)) ASSERT_TRUE(call.Read());
  request.mutable_sampling_params()->set_n(1);
  EXPECT_EQ(Generate(*stub_, request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  pb::AbortRequest abort;
  abort.add_request_ids("mine");
  pb::AbortResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->Abort(&context, abort, &response).ok());
  EXPECT_EQ(call.End().reason(0), "stop");
  EXPECT_EQ(call.outputs().reason(1), "abort");
  EXPECT_EQ(Generate(*stub_, request).reason(), "stop");
}

TEST_F(SlowVllmApi, CancelledAndUnreadStreamsLeaveNothingBehind) {
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) {
    pb::GenerateRequest request = Request(3000, /*stream=*/i % 4 != 0);
    request.mutable_sampling_params()->set_n(1 + i % 3);
    calls.push_back(std::make_unique<Call>(*stub_, request));
    if (i % 4 == 1 && i < 4) calls.back()->Read();
    if (i % 2 == 0) calls.back()->Cancel();
  }
  calls.clear();  // cancels the other calls, which have not been read
  EXPECT_TRUE(cluster_.WaitUntilIdle());
  EXPECT_TRUE(Generate(*stub_, Request(3)).status.ok());
}

TEST_F(VllmApi, HalfAMessageEndsItsCallAlone) {
  // Calls that are opened without a message, as many as may send at a time. Until they time out, the next
  // call waits or is refused with a status that allows a retry.
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::CompletionQueue>> queues;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls;
  grpc::GenericStub stub(NewChannel());
  for (int i = 0; i < 70; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    queues.push_back(std::make_unique<grpc::CompletionQueue>());
    calls.push_back(stub.PrepareCall(contexts.back().get(), "/vllm.grpc.engine.VllmEngine/Generate",
                                     queues.back().get()));
    calls.back()->StartCall(nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queues.back()->Next(&tag, &ok));
  }
  grpc::Status status = Generate(*stub_, Request(3)).status;
  if (!status.ok()) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    status = Generate(*stub_, Request(3)).status;
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (size_t i = 0; i < calls.size(); ++i) {
    contexts[i]->TryCancel();
    calls[i]->Finish(&status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queues[i]->Next(&tag, &ok));
  }
}

// --- who may call what ---

TEST_F(SlowVllmApi, ATenantsRequestsAreItsOwn) {
  pb::GenerateRequest request = Request(100);
  request.set_request_id("mine");
  const auto as = [](const std::string& tenant, grpc::ClientContext& context) -> grpc::ClientContext* {
    context.AddMetadata("bfio-tenant", tenant);
    return &context;
  };
  grpc::ClientContext acme, zeta, aborting;
  const auto reader = stub_->Generate(as("acme", acme), request);
  pb::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  const auto other = stub_->Generate(as("zeta", zeta), request);
  pb::GenerateResponse others;
  EXPECT_TRUE(other->Read(&others)) << "ids are each tenant's own";
  pb::AbortRequest abort;
  abort.add_request_ids("mine");
  pb::AbortResponse response;
  ASSERT_TRUE(stub_->Abort(as("zeta", aborting), abort, &response).ok());
  const auto reason = [](grpc::ClientReader<pb::GenerateResponse>& from) {
    pb::GenerateResponse last;
    while (from.Read(&last)) {
    }
    EXPECT_TRUE(from.Finish().ok());
    return last.complete().finish_reason();
  };
  EXPECT_EQ(reason(*other), "abort");
  EXPECT_EQ(reason(*reader), "length");
}

class LimitedVllmApi : public VllmApi {
 protected:
  static ClusterOptions Limited() {
    ClusterOptions options = Options();
    options.router_flags.push_back("--tenant_limits=*:concurrent=4,rps=4");
    return options;
  }
  LimitedVllmApi() : VllmApi(Limited()) {}
};

TEST_F(LimitedVllmApi, OutputsOfACallEnterTheirTenantsLimitsTogether) {
  pb::GenerateRequest request = Request(3);
  request.mutable_sampling_params()->set_n(5);
  const Outputs refused = Generate(*stub_, request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.status.error_message(),
            "n is 5; must be at most 4, the requests that tenant \"\" may have at a time");
  // The refused call was not charged: the tenant's full limit is available.
  request.mutable_sampling_params()->set_n(4);
  const Outputs outputs = Generate(*stub_, request);
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  EXPECT_THAT(outputs.ends, SizeIs(4));
}

class OneApi : public VllmApi, public ::testing::WithParamInterface<const char*> {
 protected:
  static ClusterOptions With(const std::string& apis) {
    ClusterOptions options = Options();
    options.router_flags.push_back("--client_apis=" + apis);
    return options;
  }
  OneApi() : VllmApi(With(GetParam())) {}
};

TEST_P(OneApi, OnlyTheChosenApisAreServed) {
  const bool vllm = std::string(GetParam()) == "vllm";
  const auto code = [&](const char* method) { return RawCall(channel_, method, "").second.error_code(); };
  EXPECT_EQ(code("/vllm.grpc.engine.VllmEngine/HealthCheck"),
            vllm ? grpc::StatusCode::OK : grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(code("/bfio.v1.Inference/GetLoads"),
            vllm ? grpc::StatusCode::UNIMPLEMENTED : grpc::StatusCode::OK);
}

INSTANTIATE_TEST_SUITE_P(Each, OneApi, ::testing::Values("bfio", "vllm"));

}  // namespace
}  // namespace bfio::testing
