// A router and workers that act as an engine, for correct and for faulty gateways of each protocol.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/testing/cluster.h"
#include "tests/testing/gateway_calls.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

template <typename P>
class GatewayApi : public ::testing::Test {
 protected:
  static ClusterOptions Options(std::vector<std::string> worker_flags = {"--c=0.0005", "--tl=0", "--slots=16",
                                                                         "--max_sequence_tokens=100000"}) {
    return {.router_flags = {"--tokenizer=" + NumbersTokenizer(), "--max_waiting=8", Apis()},
            .worker_flags = std::move(worker_flags)};
  }
  static std::string Apis() { return absl::StrCat("--client_apis=bfio,", P::kName); }
  explicit GatewayApi(const ClusterOptions& options = Options()) : cluster_(options) {}
  void SetUp() override { ASSERT_TRUE(cluster_.ok()); }

  std::shared_ptr<grpc::Channel> NewChannel() {
    return grpc::CreateChannel(cluster_.address(), grpc::InsecureChannelCredentials());
  }
  std::string Method(const std::string& name) { return absl::StrCat("/", P::kService, "/", name); }
  OutputsOf<P> Generate(const typename P::GenerateRequest& request) { return GenerateAs<P>(*stub_, request); }
  // `rank`: data_parallel_rank.
  std::unique_ptr<CallOf<P>> Start(std::optional<int32_t> rank, uint32_t output) {
    auto request = GreedyRequest<P>(output);
    if (rank) request.set_data_parallel_rank(*rank);
    return std::make_unique<CallOf<P>>(*stub_, request);
  }
  typename P::AbortResponse Abort(const std::string& id) {
    typename P::AbortResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->Abort(&context, P::AbortOf(id), &response).ok());
    return response;
  }

  Cluster cluster_;
  const std::shared_ptr<grpc::Channel> channel_ = NewChannel();
  const std::unique_ptr<typename P::Service::Stub> stub_ = P::Service::NewStub(channel_);
};

// Tokens that a model computes, so that equal requests have equal outputs.
template <typename P>
class ComputedGatewayApi : public GatewayApi<P> {
 protected:
  ComputedGatewayApi()
      : GatewayApi<P>(GatewayApi<P>::Options({"--engine=cpu", "--model=tests/golden/qwen3", "--slots=4",
                                              "--kv_tokens=4096", "--cpu_threads=1"})) {}

  // The same through bfio.v1.
  Tokens Expected(uint32_t output) {
    v1::GenerateRequest own;
    for (uint32_t id = 1; id <= 7; ++id) own.mutable_token_ids()->add_ids(id);
    own.set_max_new_tokens(output);
    own.set_ignore_eos(true);
    const GenerateResult result = testing::Generate(this->cluster_.inference(), own);
    EXPECT_THAT(result.tokens, SizeIs(output));
    return result.tokens;
  }
};

// Steps slow enough to act between them.
template <typename P>
class SlowGatewayApi : public GatewayApi<P> {
 protected:
  SlowGatewayApi()
      : GatewayApi<P>(GatewayApi<P>::Options({"--c=0.03", "--tl=0", "--slots=4", "--kv_tokens=100000"})) {}
};

// Three ranks of two slots, with steps slow enough to act between them.
template <typename P>
class RanksOfGatewayApi : public GatewayApi<P> {
 protected:
  static ClusterOptions ThreeRanks() {
    ClusterOptions options =
        GatewayApi<P>::Options({"--c=0.01", "--tl=0", "--slots=2", "--kv_tokens=100000"});
    options.worker_processes = 3;
    options.router_flags = {"--max_waiting=100", GatewayApi<P>::Apis()};
    return options;
  }
  RanksOfGatewayApi() : GatewayApi<P>(ThreeRanks()) {}

  // Requests on each rank.
  static std::map<uint32_t, uint32_t> ByRank(const v1::ClusterState& state) {
    std::map<uint32_t, uint32_t> running;
    for (const v1::WorkerState& worker : state.workers()) {
      if (worker.has_rank()) running[worker.rank()] = worker.active_requests() + worker.inflight_requests();
    }
    return running;
  }
};

// Two groups of one rank each; a group without its rank is given up after --restart_settle.
template <typename P>
class GroupsOfGatewayApi : public GatewayApi<P> {
 protected:
  static ClusterOptions TwoGroups(const std::string& settle) {
    ClusterOptions options =
        GatewayApi<P>::Options({"--c=0.01", "--tl=0", "--slots=2", "--kv_tokens=100000"});
    options.router_flags = {"--max_waiting=100", "--restart_settle=" + settle, GatewayApi<P>::Apis()};
    options.groups = 2;
    options.more_flags = {{"--group=0"}, {"--group=1"}};
    return options;
  }
  explicit GroupsOfGatewayApi(const std::string& settle = "1s") : GatewayApi<P>(TwoGroups(settle)) {}

  void LoseTheSecond() {
    this->cluster_.workers()[1].Signal(SIGKILL);
    ASSERT_TRUE(this->cluster_.WaitFor("the loss",
                                       [](const v1::ClusterState& state) { return Serving(state) == 1; }));
  }
};

template <typename P>
class PatientGroupsOfGatewayApi : public GroupsOfGatewayApi<P> {
 protected:
  PatientGroupsOfGatewayApi() : GroupsOfGatewayApi<P>("60s") {}
};

template <typename P>
class LimitedGatewayApi : public GatewayApi<P> {
 protected:
  static ClusterOptions Limited() {
    ClusterOptions options = GatewayApi<P>::Options();
    options.router_flags.push_back("--tenant_limits=*:concurrent=4,rps=4");
    return options;
  }
  LimitedGatewayApi() : GatewayApi<P>(Limited()) {}
};

TYPED_TEST_SUITE(GatewayApi, EngineProtocols, ProtocolNames);
TYPED_TEST_SUITE(ComputedGatewayApi, EngineProtocols, ProtocolNames);
TYPED_TEST_SUITE(SlowGatewayApi, EngineProtocols, ProtocolNames);
TYPED_TEST_SUITE(RanksOfGatewayApi, EngineProtocols, ProtocolNames);
TYPED_TEST_SUITE(GroupsOfGatewayApi, EngineProtocols, ProtocolNames);
TYPED_TEST_SUITE(PatientGroupsOfGatewayApi, EngineProtocols, ProtocolNames);
TYPED_TEST_SUITE(LimitedGatewayApi, EngineProtocols, ProtocolNames);

// vLLM's protocol alone has seeds, with which workers of `sim` generate the same tokens again.
class VllmApi : public GatewayApi<Vllm> {};
class SlowVllmApi : public SlowGatewayApi<Vllm> {};

// --- a correct gateway ---

TYPED_TEST(ComputedGatewayApi, BothApisGiveTheSameTokens) {
  const Tokens expected = this->Expected(40);
  for (const bool stream : {true, false}) {
    for (const uint32_t outputs : {1, 2}) {
      auto request = GreedyRequest<TypeParam>(40, stream);
      request.mutable_sampling_params()->set_n(outputs);
      const auto got = this->Generate(request);
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

TYPED_TEST(ComputedGatewayApi, StopTokensAndTextsEndOutputsAndAreNamed) {
  const Tokens all = this->Expected(20);
  size_t at = 3;
  while (std::find(all.begin(), all.begin() + at, all[at]) != all.begin() + at) ++at;
  const Tokens until(all.begin(), all.begin() + at + 1);
  auto request = GreedyRequest<TypeParam>(20);
  request.mutable_sampling_params()->add_stop_token_ids(all[at]);
  const auto by_token = this->Generate(request);
  EXPECT_EQ(by_token.tokens.at(0), until);
  EXPECT_EQ(by_token.reason(), "stop");
  EXPECT_EQ(by_token.ends.at(0).matched_token_id(), all[at]);
  for (const bool stream : {true, false}) {
    request = GreedyRequest<TypeParam>(20, stream);
    // A stop text from the middle of one token to the middle of the next.
    const std::string text = absl::StrCat("><", all[at], ">");
    request.mutable_sampling_params()->add_stop("never");
    request.mutable_sampling_params()->add_stop(text);
    const auto by_text = this->Generate(request);
    EXPECT_EQ(by_text.tokens.at(0), until);
    EXPECT_EQ(by_text.reason(), "stop");
    EXPECT_EQ(by_text.ends.at(0).matched_stop_str(), text);
    EXPECT_EQ(by_text.ends.at(0).completion_tokens(), at + 1);
  }
  EXPECT_TRUE(this->cluster_.WaitUntilIdle()) << "the workers have stopped, too";
}

TYPED_TEST(GatewayApi, TheRouterIsOneEngine) {
  grpc::ClientContext c1, c2, c3, c4, c5;
  typename TypeParam::HealthCheckResponse health;
  ASSERT_TRUE(this->stub_->HealthCheck(&c1, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  typename TypeParam::GetModelInfoResponse model;
  ASSERT_TRUE(this->stub_->GetModelInfo(&c2, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "numbers");
  EXPECT_EQ(this->cluster_.State().served_model_name(), "numbers")
      << "the label of vllm:num_requests_waiting";
  EXPECT_TRUE(model.is_generation());
  EXPECT_GT(static_cast<int>(model.max_context_length()), 0);
  typename TypeParam::GetServerInfoResponse server;
  ASSERT_TRUE(this->stub_->GetServerInfo(&c3, {}, &server).ok());
  EXPECT_EQ(TypeParam::Ranks(server), 1);
  EXPECT_EQ(TypeParam::Slots(server), 32) << "of two workers";
  typename TypeParam::GetLoadsResponse loads;
  ASSERT_TRUE(this->stub_->GetLoads(&c4, {}, &loads).ok());
  ASSERT_THAT(loads.loads(), SizeIs(1));
  EXPECT_EQ(loads.loads(0).max_running_requests(), 32);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(TypeParam::kService);
  grpc::health::v1::HealthCheckResponse status;
  ASSERT_TRUE(grpc::health::v1::Health::NewStub(this->channel_)->Check(&c5, request, &status).ok());
  EXPECT_EQ(status.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  using Other = std::conditional_t<std::is_same_v<TypeParam, Vllm>, Sglang, Vllm>;
  EXPECT_EQ(
      RawCall(this->channel_, absl::StrCat("/", Other::kService, "/HealthCheck"), "").second.error_code(),
      grpc::StatusCode::UNIMPLEMENTED)
      << "a gateway that probes finds one engine";
}

TYPED_TEST(SlowGatewayApi, LoadRecordsFollowTheLoad) {
  grpc::ClientContext context;
  common_pb::SubscribeKvEventsRequest subscribe;
  subscribe.set_load_records_before_first_batch(true);
  const auto records = this->stub_->SubscribeKvEvents(&context, subscribe);
  common_pb::KvEventBatch batch;
  ASSERT_TRUE(records->Read(&batch));
  EXPECT_EQ(batch.load().running_requests(), 0u);
  CallOf<TypeParam> running(*this->stub_, GreedyRequest<TypeParam>(2000));
  ASSERT_TRUE(running.Read());
  while (batch.load().running_requests() == 0) ASSERT_TRUE(records->Read(&batch));
  EXPECT_EQ(batch.load().running_requests(), 1u);
  EXPECT_GT(batch.load().num_used_tokens(), 0);
  EXPECT_EQ(batch.dp_rank(), 0);
  EXPECT_EQ(batch.sequence_number(), 0u);
  context.TryCancel();
}

TYPED_TEST(SlowGatewayApi, MaxTokensThatAreNotSetAreAllThatFits) {
  auto request = GreedyRequest<TypeParam>(1);
  TypeParam::ClearMaxTokens(*request.mutable_sampling_params());
  CallOf<TypeParam> call(*this->stub_, request);
  EXPECT_TRUE(call.Read());
}

TYPED_TEST(SlowGatewayApi, AnAbortEndsEveryOutputWithWhatItHas) {
  auto request = GreedyRequest<TypeParam>(2000);
  request.set_request_id("victim");
  request.mutable_sampling_params()->set_n(2);
  CallOf<TypeParam> call(*this->stub_, request);
  while (call.outputs().tokens.size() < 2) ASSERT_TRUE(call.Read());
  const auto nobody = this->Abort("nobody"), victim = this->Abort("victim");
  if constexpr (requires { victim.success(); }) {
    EXPECT_FALSE(nobody.success());
    EXPECT_TRUE(victim.success());
  }
  const auto& outputs = call.End();
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  for (const uint32_t index : {0u, 1u}) {
    EXPECT_EQ(outputs.reason(index), "abort");
    EXPECT_EQ(outputs.ends.at(index).completion_tokens(), outputs.tokens.at(index).size());
  }
  EXPECT_TRUE(this->cluster_.WaitUntilIdle());
}

TYPED_TEST(SlowGatewayApi, ADeadlineEndsTheCallAndTheRequests) {
  auto request = GreedyRequest<TypeParam>(2000);
  request.mutable_sampling_params()->set_n(2);
  CallOf<TypeParam> call(*this->stub_, request, kSlowdown * absl::Seconds(1));
  EXPECT_EQ(call.End().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(this->cluster_.WaitUntilIdle());
}

TYPED_TEST(SlowGatewayApi, ARestartedRouterServesTheGatewayAgain) {
  CallOf<TypeParam> call(*this->stub_, GreedyRequest<TypeParam>(2000));
  ASSERT_TRUE(call.Read());
  this->cluster_.KillRouter();
  EXPECT_EQ(call.End().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  this->cluster_.StartRouterAgain();
  ASSERT_TRUE(this->cluster_.WaitFor("an epoch of all workers", [](const v1::ClusterState& state) {
    return state.groups_size() == 1 && state.groups(0).ready() && state.workers_size() == 2;
  }));
  const auto again = TypeParam::Service::NewStub(this->NewChannel());
  const auto outputs = GenerateAs<TypeParam>(*again, GreedyRequest<TypeParam>(3));
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  EXPECT_THAT(outputs.tokens.at(0), SizeIs(3));
}

// --- recorded sessions of SMG ---

TYPED_TEST(GatewayApi, RecordedSessionsOfSmgGetTheirAnswers) {
  int calls = 0;
  for (const char* session : {"start", "chat", "refused"}) {
    const char* const prefix = std::is_same_v<TypeParam, Sglang> ? "sglang_" : "";
    calls += ReplaySession<TypeParam>(this->channel_, absl::StrCat(prefix, session));
  }
  EXPECT_GE(calls, 24);
}

// --- a faulty gateway ---

TYPED_TEST(GatewayApi, GarbageIsRefusedAndOtherCallsContinue) {
  CallOf<TypeParam> bystander(*this->stub_, GreedyRequest<TypeParam>(400));
  const std::string large(400'000, '\xff');
  for (const char* method : {"Generate", "Abort", "HealthCheck", "GetModelInfo", "GetServerInfo", "GetLoads",
                             "GetTokenizer", "SubscribeKvEvents"}) {
    const std::string path = this->Method(method);
    for (const std::string& bytes : {std::string("\xff"), std::string("\x0a\x7f"), large}) {
      const auto [messages, status] = RawCall(this->channel_, path, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
      EXPECT_THAT(messages, SizeIs(0));
    }
  }
  EXPECT_EQ(RawCall(this->channel_, this->Method("Embed"), "").second.error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(bystander.End().status.ok());
  EXPECT_THAT(bystander.outputs().tokens.at(0), SizeIs(400));
}

TYPED_TEST(RanksOfGatewayApi, ANamedRankTakesItsRequestsAndNoOtherDoes) {
  std::vector<std::unique_ptr<CallOf<TypeParam>>> held;
  for (int i = 0; i < 5; ++i) held.push_back(this->Start(1, 60));
  ASSERT_TRUE(this->cluster_.WaitFor("the rank to be full", [](const v1::ClusterState& state) {
    return TestFixture::ByRank(state)[1] == 2 && state.waiting_requests() == 3;
  }));
  // Requests that name no rank run on the others.
  std::vector<std::unique_ptr<CallOf<TypeParam>>> free;
  for (int i = 0; i < 4; ++i) free.push_back(this->Start(std::nullopt, 10));
  for (const auto& call : free) EXPECT_EQ(call->End().reason(), "length");
  const v1::ClusterState state = this->cluster_.State();
  EXPECT_EQ(TestFixture::ByRank(state), (std::map<uint32_t, uint32_t>{{0, 0}, {1, 2}, {2, 0}}));
  EXPECT_EQ(state.waiting_requests(), 3u) << "free ranks do not take them";
  typename TypeParam::GetLoadsResponse loads;
  grpc::ClientContext context;
  ASSERT_TRUE(this->stub_->GetLoads(&context, {}, &loads).ok());
  EXPECT_EQ(loads.loads(0).num_waiting_uncached_tokens(),
            3 * GreedyRequest<TypeParam>(60).tokenized().input_ids_size());
  for (const auto& call : held) {
    EXPECT_EQ(call->End().reason(), "length");
    EXPECT_THAT(call->outputs().tokens.at(0), SizeIs(60));
  }
}

TYPED_TEST(RanksOfGatewayApi, ARankThatHasLeftEndsWhatWaitsForIt) {
  std::vector<std::unique_ptr<CallOf<TypeParam>>> running, waiting;
  for (int i = 0; i < 2; ++i) running.push_back(this->Start(2, 2000));
  ASSERT_TRUE(this->cluster_.WaitFor("the rank to be full", [](const v1::ClusterState& state) {
    return TestFixture::ByRank(state)[2] == 2;
  }));
  for (int i = 0; i < 2; ++i) waiting.push_back(this->Start(2, 2000));
  ASSERT_TRUE(this->cluster_.WaitFor("two to wait", [](const v1::ClusterState& state) {
    return TestFixture::ByRank(state)[2] == 2 && state.waiting_requests() == 2;
  }));
  // Ranks have consecutive numbers, so whichever rank leaves, number 2 no longer exists.
  this->cluster_.workers()[0].Signal(SIGKILL);
  for (const auto& call : waiting) {
    const grpc::Status& status = call->End().status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("data_parallel_rank 2 has left"));
  }
  auto request = GreedyRequest<TypeParam>(5);
  request.set_data_parallel_rank(2);
  const auto refused = this->Generate(request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("data_parallel_rank is 2; it must be below 2"));
}

TYPED_TEST(GroupsOfGatewayApi, WhatIsHeldToAGroupThatIsGivenUpEnds) {
  std::vector<std::unique_ptr<CallOf<TypeParam>>> held;
  for (int i = 0; i < 4; ++i) held.push_back(this->Start(1, 2000));
  const std::unique_ptr<CallOf<TypeParam>> elsewhere = this->Start(0, 2000);
  ASSERT_TRUE(elsewhere->Read());
  ASSERT_TRUE(this->cluster_.WaitFor("two to run and two to wait", [](const v1::ClusterState& state) {
    return Running(state) == 3 && state.waiting_requests() == 2;
  }));
  this->LoseTheSecond();
  for (const auto& call : held) {
    const grpc::Status& status = call->End().status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("data_parallel_rank 1 has left"));
  }
  EXPECT_TRUE(elsewhere->Read());
  const auto late = this->Start(1, 2000)->End();
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(late.status.error_message(), HasSubstr("data_parallel_rank is 1; it must be below 1"));
}

TYPED_TEST(PatientGroupsOfGatewayApi, ARankThatMayComeBackIsUnavailable) {
  this->LoseTheSecond();
  const auto refused = this->Start(1, 2000)->End();
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("data_parallel_rank is 1; "));
  EXPECT_TRUE(this->Start(0, 2000)->Read());
}

TYPED_TEST(GatewayApi, WhatIsTooLargeIsRefusedByName) {
  const auto refused = [&](const typename TypeParam::GenerateRequest& request, const std::string& name) {
    const grpc::Status status = this->Generate(request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  };
  auto request = GreedyRequest<TypeParam>(3);
  request.set_request_id(std::string(100'000, 'i'));
  refused(request, "request_id's length is 100000");
  request = GreedyRequest<TypeParam>(3);
  request.mutable_tokenized()->mutable_input_ids()->Resize(140'000, 1);
  refused(request, "the number of token_ids is 140000");
  request = GreedyRequest<TypeParam>(60'000);
  request.mutable_tokenized()->mutable_input_ids()->Resize(100'000, 1);
  refused(request, "prompt + max_new_tokens");
  request = GreedyRequest<TypeParam>(3);
  request.set_data_parallel_rank(2);
  refused(request, "data_parallel_rank is 2; it must be below 2");
}

TYPED_TEST(SlowGatewayApi, ALiveRequestIdIsTakenWhateverTheApi) {
  auto request = GreedyRequest<TypeParam>(2000);
  request.set_request_id("mine");
  CallOf<TypeParam> running(*this->stub_, request);
  ASSERT_TRUE(running.Read());
  EXPECT_EQ(this->Generate(request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  // One refused output is enough to refuse all of them.
  request.set_request_id("other");
  CallOf<TypeParam> second(*this->stub_, request);
  ASSERT_TRUE(second.Read());
  request.mutable_sampling_params()->set_n(3);
  EXPECT_EQ(this->Generate(request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  running.Cancel();
  second.Cancel();
  EXPECT_TRUE(this->cluster_.WaitUntilIdle());
}

TYPED_TEST(SlowGatewayApi, CancelledAndUnreadStreamsLeaveNothingBehind) {
  std::vector<std::unique_ptr<CallOf<TypeParam>>> calls;
  for (int i = 0; i < 8; ++i) {
    auto request = GreedyRequest<TypeParam>(3000, /*stream=*/i % 4 != 0);
    request.mutable_sampling_params()->set_n(1 + i % 3);
    calls.push_back(std::make_unique<CallOf<TypeParam>>(*this->stub_, request));
    if (i % 4 == 1 && i < 4) calls.back()->Read();
    if (i % 2 == 0) calls.back()->Cancel();
  }
  calls.clear();  // cancels the other calls, which have not been read
  EXPECT_TRUE(this->cluster_.WaitUntilIdle());
  EXPECT_TRUE(this->Generate(GreedyRequest<TypeParam>(3)).status.ok());
}

TYPED_TEST(GatewayApi, HalfAMessageEndsItsCallAlone) {
  // Calls that are opened without a message, as many as may send at a time. Until they time out, the next
  // call waits or is refused with a status that allows a retry.
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::CompletionQueue>> queues;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls;
  grpc::GenericStub stub(this->NewChannel());
  for (int i = 0; i < 70; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    queues.push_back(std::make_unique<grpc::CompletionQueue>());
    calls.push_back(stub.PrepareCall(contexts.back().get(), this->Method("Generate"), queues.back().get()));
    calls.back()->StartCall(nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queues.back()->Next(&tag, &ok));
  }
  grpc::Status status = this->Generate(GreedyRequest<TypeParam>(3)).status;
  if (!status.ok()) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    status = this->Generate(GreedyRequest<TypeParam>(3)).status;
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

TYPED_TEST(SlowGatewayApi, ATenantsRequestsAreItsOwn) {
  auto request = GreedyRequest<TypeParam>(100);
  request.set_request_id("mine");
  const auto as = [](const std::string& tenant, grpc::ClientContext& context) -> grpc::ClientContext* {
    context.AddMetadata("bfio-tenant", tenant);
    return &context;
  };
  grpc::ClientContext acme, zeta, aborting;
  const auto reader = this->stub_->Generate(as("acme", acme), request);
  typename TypeParam::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  const auto other = this->stub_->Generate(as("zeta", zeta), request);
  typename TypeParam::GenerateResponse others;
  EXPECT_TRUE(other->Read(&others)) << "ids are each tenant's own";
  typename TypeParam::AbortResponse response;
  ASSERT_TRUE(this->stub_->Abort(as("zeta", aborting), TypeParam::AbortOf("mine"), &response).ok());
  const auto reason = [](grpc::ClientReader<typename TypeParam::GenerateResponse>& from) {
    typename TypeParam::GenerateResponse last;
    while (from.Read(&last)) {
    }
    EXPECT_TRUE(from.Finish().ok());
    return last.complete().finish_reason();
  };
  EXPECT_EQ(reason(*other), "abort");
  EXPECT_EQ(reason(*reader), "length");
}

TYPED_TEST(LimitedGatewayApi, OutputsOfACallEnterTheirTenantsLimitsTogether) {
  auto request = GreedyRequest<TypeParam>(3);
  request.mutable_sampling_params()->set_n(5);
  const auto refused = this->Generate(request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.status.error_message(),
            "n is 5; must be at most 4, the requests that tenant \"\" may have at a time");
  // The refused call was not charged: the tenant's full limit is available.
  request.mutable_sampling_params()->set_n(4);
  const auto outputs = this->Generate(request);
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  EXPECT_THAT(outputs.ends, SizeIs(4));
}

// --- one protocol ---

Vllm::GenerateRequest SeededRequest(uint32_t output, bool stream = true) {
  Vllm::GenerateRequest request = GreedyRequest<Vllm>(output, stream);
  request.mutable_sampling_params()->set_temperature(1);
  request.mutable_sampling_params()->set_seed(5);
  return request;
}

TEST_F(VllmApi, OutputsAreThoseOfRequestsWithFollowingSeeds) {
  for (const bool stream : {true, false}) {
    Vllm::GenerateRequest request = SeededRequest(20, stream);
    request.mutable_sampling_params()->set_n(5);
    const OutputsOf<Vllm> several = Generate(request);
    ASSERT_TRUE(several.status.ok()) << several.status.error_message();
    ASSERT_THAT(several.ends, SizeIs(5));
    for (uint32_t index = 0; index < 5; ++index) {
      Vllm::GenerateRequest one = SeededRequest(20);
      one.mutable_sampling_params()->set_seed(5 + static_cast<int>(index));
      EXPECT_EQ(several.tokens.at(index), Generate(one).tokens.at(0)) << index;
      EXPECT_EQ(several.reason(index), "length");
    }
    EXPECT_NE(several.tokens.at(0), several.tokens.at(1));
  }
}

TEST_F(SlowVllmApi, AWorkersDeathLosesAndRepeatsNothing) {
  const Tokens expected = Generate(SeededRequest(60)).tokens.at(0);
  std::vector<std::unique_ptr<CallOf<Vllm>>> calls;
  for (int i = 0; i < 4; ++i) {
    Vllm::GenerateRequest request = SeededRequest(60, /*stream=*/i % 2 == 0);
    calls.push_back(std::make_unique<CallOf<Vllm>>(*stub_, request));
  }
  ASSERT_TRUE(calls[0]->Read());
  ASSERT_TRUE(calls[2]->Read());
  cluster_.workers()[0].Signal(SIGKILL);
  cluster_.workers()[0].Wait(absl::Seconds(30));
  for (const auto& call : calls) {
    const OutputsOf<Vllm>& outputs = call->End();
    ASSERT_TRUE(outputs.status.ok()) << outputs.status.error_message();
    EXPECT_EQ(outputs.tokens.at(0), expected);
    EXPECT_EQ(outputs.reason(), "length");
  }
}

TEST_F(SlowVllmApi, AnIdIsTakenUntilTheLastOutputEnds) {
  const uint32_t first = Generate(SeededRequest(1)).tokens.at(0).at(0);
  Vllm::GenerateRequest request = SeededRequest(2000);
  request.set_request_id("mine");
  request.mutable_sampling_params()->set_n(2);
  // The other output has another seed, so it continues.
  request.mutable_sampling_params()->add_stop_token_ids(first);
  CallOf<Vllm> call(*stub_, request);
  while (!call.outputs().ends.contains(0)) ASSERT_TRUE(call.Read());
  request.mutable_sampling_params()->set_n(1);
  EXPECT_EQ(Generate(request).status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  Abort("mine");
  EXPECT_EQ(call.End().reason(0), "stop");
  EXPECT_EQ(call.outputs().reason(1), "abort");
  EXPECT_EQ(Generate(request).reason(), "stop");
}

class OneApi : public GatewayApi<Vllm>, public ::testing::WithParamInterface<const char*> {
 protected:
  static ClusterOptions With(const std::string& apis) {
    ClusterOptions options = Options();
    options.router_flags.push_back("--client_apis=" + apis);
    return options;
  }
  OneApi() : GatewayApi(With(GetParam())) {}
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
