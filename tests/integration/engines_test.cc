// A router in front of engines that have no bfio code (--engines), correct and faulty ones. Typed tests run
// with each protocol, the others with vLLM's.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bfio/v1/engine_steps.grpc.pb.h"
#include "common/base/clock.h"
#include "tests/chaos/tcp_proxy.h"
#include "tests/testing/engine_fixture.h"

namespace bfio::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using SglangEngines = EnginesOf<Sglang>;

TYPED_TEST_SUITE(EnginesOf, EngineProtocols, ProtocolNames);

TYPED_TEST(EnginesOf, TokensAreTheEnginesOverRanksAndServers) {
  const HeldPort a, b;
  typename TestFixture::Engine one(this->At(a, 2)), two(this->At(b, 2));
  this->Serve({a.address(), b.address()}, 4);
  this->ExpectRightTokens(40);
  EXPECT_THAT(one.counts().by_rank, Each(Gt(0)));
  EXPECT_THAT(two.counts().by_rank, Each(Gt(0)));
  EXPECT_TRUE(this->cluster_->WaitFor("ranks that are empty", [](const v1::ClusterState& state) {
    for (const v1::WorkerState& worker : state.workers())
      if (worker.active_requests() > 0 || worker.load_tokens() > 0) return false;
    return state.workers_size() == 4;
  }));
  this->cluster_->StopCleanly();
}

TEST_F(EnginesTest, RequestsWaitInTheRouterNotInTheEngine) {
  constexpr int kSlots = 16, kTokens = 16;
  // Enough requests to run past the first health check, whose duration must not count as a round trip.
  constexpr int kRequests = 400;
  const HeldPort port;
  ScriptedEngine::Options options = At(port, 2);
  options.health = absl::Milliseconds(500);
  options.slots = kSlots;
  options.step = absl::Milliseconds(20);
  ScriptedEngine engine(options);
  Serve({port.address()}, 2);
  const auto asks =
      pb::VllmEngine::NewStub(grpc::CreateChannel(port.address(), grpc::InsecureChannelCredentials()));
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (int i = 0; i < kRequests; ++i)
    streams.push_back(std::make_unique<RequestStream>(
        stub(), Request(Tokens(4, 3'000 + static_cast<uint32_t>(i)), kTokens)));
  // GetLoads may report some requests beyond the slots: those that end in a round trip and a step, plus one.
  // A step ends slots / tokens per request of them, sometimes somewhat more. Half of the slots is enough for
  // round trips of over 100 ms on a busy machine. A health check of 500 ms that counted as a round trip would
  // give as many as the slots.
  constexpr double kEnds = 1.2 * kSlots / kTokens;
  absl::Duration round_trip = options.step;
  int most = 0, looks = 0;
  const absl::Time deadline = MonotonicNow() + kSlowdown * absl::Seconds(60);
  for (; MonotonicNow() < deadline; ++looks) {
    const ScriptedEngine::Counts counts = engine.counts();
    if (counts.taken == kRequests && counts.running == 0) break;
    grpc::ClientContext context;
    pb::GetLoadsResponse loads;
    const absl::Time asked = MonotonicNow();
    ASSERT_TRUE(asks->GetLoads(&context, {}, &loads).ok());
    round_trip = std::max(round_trip, MonotonicNow() - asked);
    for (const pb::SchedulerLoad& load : loads.loads())
      most = std::max(most, load.num_running_reqs() + load.num_waiting_reqs());
    absl::SleepFor(absl::Milliseconds(2));
  }
  for (const auto& stream : streams) EXPECT_TRUE(stream->End().status.ok());
  const double credit = std::ceil(kEnds * (1 + absl::FDivDuration(round_trip, options.step))) + 1;
  EXPECT_LE(most, kSlots + std::max<double>(credit, kSlots / 2)) << "round trip " << round_trip;
  EXPECT_GE(most, kSlots) << "no rank was full";
  EXPECT_GT(looks, 10);
  EXPECT_EQ(engine.counts().taken, kRequests);
}

// One server with all ranks, one per rank, and two with half of them each, as with vLLM's external and hybrid
// load balancing: GetServerInfo then counts all ranks, and GetLoads reports the server's own.
TEST_F(EnginesTest, ServersWithAPartOfTheRanksServeThese) {
  constexpr int32_t kAll = 4;
  for (const int32_t of_each : {4, 1, 2}) {
    SCOPED_TRACE(of_each);
    std::vector<HeldPort> ports(kAll / of_each);
    std::vector<std::unique_ptr<ScriptedEngine>> engines;
    std::vector<std::string> addresses;
    for (const HeldPort& port : ports) {
      ScriptedEngine::Options options = At(port, of_each);
      options.first_rank = of_each * static_cast<int32_t>(engines.size());
      options.all_ranks = kAll;
      engines.push_back(std::make_unique<ScriptedEngine>(options));
      addresses.push_back(port.address());
    }
    Serve(addresses, kAll, {}, ", barrier: b");
    ExpectRightTokens(40);
    // Requests of other clients on the last server are attributed to its ranks.
    engines.back()->SetOthers(2, 50);
    const std::string last = absl::StrCat("vllm://", addresses.back(), "#");
    EXPECT_TRUE(cluster_->WaitFor("loads", [&](const v1::ClusterState& state) {
      int loaded = 0;
      for (const v1::WorkerState& worker : state.workers())
        loaded += worker.engine_requests() == 2 && worker.worker_id().starts_with(last);
      return state.workers_size() == kAll && loaded == of_each;
    }));
    for (const auto& engine : engines) EXPECT_THAT(engine->counts().by_rank, Each(Gt(0)));
    cluster_.reset();
  }
}

TYPED_TEST(EnginesOf, AnEngineGetsARequestsTraceItsPromptAndItsEnd) {
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const HeldPort port;
  typename TestFixture::Engine engine(this->At(port));
  this->Serve({port.address()}, 1);
  for (const auto& metadata : {client::Metadata{{"traceparent", trace}}, {{"traceparent", "invalid"}}, {}}) {
    RequestStream stream(this->stub(), Request({7, 8, 9}, 4), {.metadata = metadata});
    ASSERT_TRUE(stream.End().status.ok());
  }
  std::vector<std::string> sent;
  for (const typename TestFixture::Engine::Exchange& exchange : engine.exchanges())
    sent.push_back(exchange.traceparent);
  EXPECT_THAT(sent, ElementsAre(trace, "", ""));
  // A prompt of which only the length is known is filled in.
  const GenerateResult result = Generate(this->stub(), SyntheticRequest(10, 12));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens.size(), 12u);
  EXPECT_EQ(result.finish.usage().prompt_tokens(), 10u);
  RequestStream leaves(this->stub(), Request({7, 8, 9}, 4'000));
  ASSERT_TRUE(leaves.Read());
  leaves.Cancel();
  EXPECT_TRUE(Eventually([&] { return engine.counts().running == 0; }));
  EXPECT_EQ(engine.counts().cancelled, 1);
}

// Killed; not answering health checks; answering them and making no steps; behind a connection that carries
// nothing, which TCP itself notices only after about 15 minutes.
TYPED_TEST(EnginesOf, RequestsOfALostEngineContinueOnAnother) {
  for (const std::string way : {"killed", "silent", "stalled", "black hole"}) {
    SCOPED_TRACE(way);
    const HeldPort a, b;
    typename TestFixture::Engine one(this->At(a)), two(this->At(b));
    chaos::TcpProxy proxy("127.0.0.1", a.address());
    this->Serve({proxy.address(), b.address()}, 2, {"--step_timeout=1s"});
    std::vector<std::unique_ptr<RequestStream>> streams;
    for (uint32_t i = 0; i < 6; ++i) {
      streams.push_back(std::make_unique<RequestStream>(this->stub(), Request(Tokens(6, 4'000 + i), 300)));
      ASSERT_TRUE(streams.back()->Read());
    }
    ASSERT_GT(one.counts().taken, 0);
    if (way == "killed") one.Kill();
    if (way == "silent" || way == "stalled") one.SetSilent(true, /*healthy=*/way == "stalled");
    if (way == "black hole") proxy.BlackHole();
    for (uint32_t i = 0; i < 6; ++i) {
      const GenerateResult& result = streams[i]->End();
      EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      EXPECT_TRUE(result.contiguous);
      EXPECT_EQ(result.tokens, TokensAfter(Tokens(6, 4'000 + i), 300));
    }
    one.SetSilent(false);
    if (way == "black hole") {
      EXPECT_TRUE(this->cluster_->WaitFor("the engine over a new connection",
                                          [](const v1::ClusterState& state) { return Serving(state) == 2; }));
    }
    this->cluster_.reset();
  }
}

// Some engines end with such a prompt, or read other memory.
TYPED_TEST(EnginesOf, TokensBeyondTheVocabularyReachNoEngine) {
  const HeldPort port;
  auto options = this->At(port);
  options.vocabulary = 31'000;
  typename TestFixture::Engine engine(options);
  this->Serve({port.address()}, 1);
  for (const uint32_t id : {31'000u, 4'294'967'295u}) {
    const GenerateResult result = Generate(this->stub(), Request({5, id, 6}, 3));
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(result.status.error_message(),
              absl::StrCat("the prompt has token id ", id, "; the model's are below 31000"));
    EXPECT_EQ(
        GenerateAs<TypeParam>(this->gateway(), FromGatewayOf<TypeParam>({5, id, 6}, 3)).status.error_code(),
        grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(engine.counts().taken, 0);
  EXPECT_EQ(Generate(this->stub(), Request({5, 30'999}, 3)).tokens, TokensAfter({5, 30'999}, 3));
}

TYPED_TEST(EnginesOf, ARequestsFaultEndsTheRequestOnly) {
  const HeldPort port;
  typename TestFixture::Engine engine(this->At(port));
  this->Serve({port.address()}, 1);
  RequestStream good(this->stub(), Request({1, 2, 3}, 400));
  ASSERT_TRUE(good.Read());
  const auto code = [&](uint32_t fault) {
    const GenerateResult result = Generate(this->stub(), Request({fault, 2, 3}, 10));
    const Tokens all = TokensAfter({fault, 2, 3}, 10);
    EXPECT_LE(result.tokens.size(), all.size());
    // vLLM's chunks have no positions: only the count at the end shows that one came twice, late or never.
    if (!std::is_same_v<TypeParam, testing::Vllm>) {
      EXPECT_TRUE(std::equal(result.tokens.begin(), result.tokens.end(), all.begin())) << "wrong tokens";
    }
    return result.status.error_code();
  };
  const auto passed = [&](const Tokens& prompt, float temperature = 0) {
    auto request = FromGatewayOf<TypeParam>(prompt, 5);
    request.mutable_sampling_params()->set_temperature(temperature);
    return GenerateAs<TypeParam>(this->gateway(), request);
  };
  for (const auto& [fault, expected] : {std::pair(kTooManyTokens, grpc::StatusCode::DATA_LOSS),
                                        {kTwice, grpc::StatusCode::DATA_LOSS},
                                        {kMissing, grpc::StatusCode::DATA_LOSS},
                                        {kSwapped, grpc::StatusCode::DATA_LOSS},
                                        {kInternal, grpc::StatusCode::INTERNAL},
                                        {kBadRequest, grpc::StatusCode::INVALID_ARGUMENT}}) {
    EXPECT_EQ(code(fault), expected) << fault;
    EXPECT_EQ(passed({fault, 2}).status.error_code(), expected) << fault;
  }
  EXPECT_EQ(code(kOtherOutput), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(code(kNoReason), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(code(kEngineError), grpc::StatusCode::INTERNAL);
  // The request is placed again.
  const GenerateResult full = Generate(this->stub(), Request({kFull, 2, 3}, 10));
  EXPECT_EQ(full.tokens, TokensAfter({kFull, 2, 3}, 10));
  // Greedy requests continue after every third token, because only the stream has broken; others end.
  for (const uint32_t fault : {kUnavailable, kEngineAbort}) {
    const GenerateResult moved = Generate(this->stub(), Request({fault, 2, 3}, 10));
    EXPECT_TRUE(moved.status.ok()) << moved.status.error_message();
    EXPECT_EQ(moved.tokens, TokensAfter({fault, 2, 3}, 10));
    EXPECT_EQ(passed({fault, 2}).tokens.at(0), TokensAfter({fault, 2}, 5));
    EXPECT_EQ(passed({fault, 2}, /*temperature=*/1).status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << fault;
  }
  EXPECT_THAT(passed({}).status.error_message(), HasSubstr("prompt is missing"));
  // An engine's refusal is the gateway's answer, with its words and its trailing metadata.
  EXPECT_THAT(passed({kBadRequest, 2}).status.error_message(), HasSubstr("that it does not like"));
  grpc::ClientContext context;
  const auto reader = this->gateway().Generate(&context, FromGatewayOf<TypeParam>({kBadRequest, 2}, 8));
  typename TypeParam::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto trailers = context.GetServerTrailingMetadata();
  const auto failed = trailers.find("smg-constraint-failed");
  ASSERT_NE(failed, trailers.end());
  EXPECT_EQ(std::string(failed->second.data(), failed->second.size()), "engine");
  EXPECT_EQ(good.End().tokens, TokensAfter({1, 2, 3}, 400));
}

// --- lists that change ---

TEST_F(EnginesTest, AServerThatTheFileNamesNoMoreFinishesAndLeaves) {
  const HeldPort a, b;
  ScriptedEngine one(At(a)), two(At(b));
  const std::string path = TestDirectory() + "/engines";
  const auto list = [&](std::vector<std::string> addresses) {
    std::ofstream out(path);
    out << "engines:\n";
    for (const std::string& address : addresses) out << "- vllm://" << address << "\n";
  };
  const auto wait_for = [&](const std::string& what, std::vector<std::string> servers) {
    return cluster_->WaitFor(what, [&](const v1::ClusterState& state) {
      std::vector<std::string> serving;
      for (const v1::WorkerState& worker : state.workers())
        if (worker.phase() == v1::WORKER_PHASE_SERVING) serving.push_back(worker.worker_id());
      std::sort(serving.begin(), serving.end());
      std::vector<std::string> expected;
      for (const std::string& server : servers) expected.push_back(absl::StrCat("vllm://", server, "#0"));
      std::sort(expected.begin(), expected.end());
      return serving == expected;
    });
  };
  list({a.address()});
  ServeEngines(1, {"--engines=file:" + path});
  RequestStream stream(stub(), Request({1, 2, 3}, 3'000));
  ASSERT_TRUE(stream.Read());
  list({b.address()});
  ASSERT_TRUE(cluster_->WaitFor("the other one to serve", [&](const v1::ClusterState& state) {
    bool draining = false, serving = false;
    for (const v1::WorkerState& worker : state.workers()) {
      draining = draining || worker.phase() == v1::WORKER_PHASE_DRAINING;
      serving =
          serving || (worker.worker_id() == absl::StrCat("vllm://", b.address(), "#0") && worker.has_rank());
    }
    return draining && serving;
  }));
  EXPECT_EQ(Generate(stub(), Request({4, 5}, 5)).tokens, TokensAfter({4, 5}, 5));
  EXPECT_EQ(one.counts().taken, 1);
  EXPECT_EQ(stream.End().tokens, TokensAfter({1, 2, 3}, 3'000)) << "no token is lost by it";
  EXPECT_TRUE(wait_for("the first one to leave", {b.address()}));
  list({a.address(), b.address()});
  EXPECT_TRUE(wait_for("the first one to be back", {a.address(), b.address()}));
  cluster_->StopCleanly();
}

// The engine's end of the EngineSteps protocol: reports a step and reads the response.
class StepsClient {
 public:
  explicit StepsClient(const std::string& router)
      : stub_(v1::EngineSteps::NewStub(grpc::CreateChannel(router, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Follow(&context_)) {}
  ~StepsClient() { context_.TryCancel(); }

  // Absent when the stream has ended.
  std::optional<v1::Allotment> Report(const v1::EngineStep& step) {
    v1::Allotment allotment;
    if (!stream_->Write(step) || !stream_->Read(&allotment)) return std::nullopt;
    return allotment;
  }
  grpc::Status End() { return stream_->Finish(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::EngineSteps::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::EngineStep, v1::Allotment>> stream_;
};

// A step that takes 10 ms, plus 0.1 ms per token.
v1::EngineStep StepOf(uint64_t number, uint32_t decodes, uint32_t prompt_tokens) {
  v1::EngineStep step;
  step.set_step(number);
  step.set_decodes(decodes);
  step.set_decode_tokens(decodes);
  step.set_decode_context(100 * decodes);
  step.set_prompt_tokens(prompt_tokens);
  step.set_step_ns(10'000'000 + 100'000 * (decodes + prompt_tokens));
  return step;
}

TEST_F(EnginesTest, AnEngineThatReportsItsStepsGetsAllotments) {
  const HeldPort port;
  ScriptedEngine::Options options = At(port);
  options.slots = 16;
  ScriptedEngine engine(options);
  Serve({port.address()}, 1, {}, ", barrier: b");
  StepsClient steps(cluster_->address());
  v1::EngineStep hello;
  hello.mutable_hello()->set_engine("scripted");
  hello.mutable_hello()->set_token_budget(512);
  std::optional<v1::Allotment> answer = steps.Report(hello);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->number(), 1u);
  EXPECT_FALSE(answer->has_prompt_tokens()) << "the router does not know yet which rank it is";

  RequestStream decodes(stub(), Request(Tokens(10, 1'000), 3'900));
  ASSERT_TRUE(decodes.Read());
  std::vector<std::unique_ptr<RequestStream>> prompts;
  bool limited = false;
  for (uint64_t step = 1; step <= 4'000 && !limited; ++step) {
    // After steps of many sizes prompts arrive; each is reported with half of it left.
    if (step > 100 && step % 8 == 0)
      prompts.push_back(std::make_unique<RequestStream>(stub(), Request(Tokens(400, 2'000), 2)));
    v1::EngineStep report = StepOf(step, 1, step % 5 * 40);
    const std::vector<ScriptedEngine::Exchange> taken = engine.exchanges();
    v1::PromptWork& prompt = *report.add_prompts();
    prompt.set_request_id(taken.back().request.request_id() + "-1a2b3c4d");
    prompt.set_left(200);
    answer = steps.Report(report);
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->number(), step + 1);
    limited = answer->has_prompt_tokens();
    EXPECT_LE(answer->prompt_tokens(), 512u);
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(limited);
  for (const auto& stream : prompts) EXPECT_TRUE(stream->End().status.ok());
}

TEST_F(EnginesTest, AStepThatNoEngineMakesEndsItsStream) {
  const HeldPort port;
  ScriptedEngine engine(At(port));
  Serve({port.address()}, 1);
  StepsClient steps(cluster_->address());
  v1::EngineStep wrong = StepOf(1, 1, 1);
  wrong.set_step_ns(~uint64_t{0});
  EXPECT_FALSE(steps.Report(wrong));
  EXPECT_EQ(steps.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // A new stream, and requests, still work.
  StepsClient other(cluster_->address());
  EXPECT_TRUE(other.Report(StepOf(1, 1, 1)));
  EXPECT_TRUE(RequestStream(stub(), Request(Tokens(5, 2'000), 3)).End().status.ok());
}

// --- SGLang's servers ---

// What only SGLang's protocol has: servers that choose ranks themselves, aborts by name, and no seeds.

TEST_F(SglangEngines, RequestsOfBfioAreTranslated) {
  const HeldPort port;
  Engine engine(At(port, 2));
  Serve({port.address()}, 2);
  EXPECT_EQ(Generate(stub(), Request({4, 5}, 5)).tokens, TokensAfter({4, 5}, 5));
  const Sglang::GenerateRequest sent = engine.exchanges().at(0).request;
  EXPECT_TRUE(sent.has_data_parallel_rank());
  EXPECT_TRUE(sent.stream());
  EXPECT_EQ(sent.sampling_params().top_k(), -1);
  EXPECT_EQ(sent.sampling_params().top_p(), 1);
  EXPECT_EQ(sent.sampling_params().repetition_penalty(), 1);
  v1::GenerateRequest seeded = Request({4, 5}, 5);
  seeded.mutable_sampling()->set_temperature(1);
  seeded.mutable_sampling()->set_seed(3);
  const GenerateResult refused = Generate(stub(), seeded);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("sampling.seed"));
}

// It has one rank in the router, to which requests name no rank; its load is the sum over its ranks.
TEST_F(SglangEngines, AServerThatChoosesItsRanksItselfIsOneRank) {
  for (const bool attention : {false, true}) {
    const HeldPort port;
    Engine::Options options = At(port, 2);
    options.chooses_ranks = true;
    options.slots = 6;
    options.kv_tokens = 50'000;
    options.attention_ranks = attention;
    Engine engine(options);
    Serve({port.address()}, 1, {}, "");
    EXPECT_TRUE(cluster_->WaitFor("its sizes", [](const v1::ClusterState& state) {
      return state.workers_size() == 1 && state.workers(0).slots() == 12 &&
             state.workers(0).kv_tokens() == 100'000;
    }));
    EXPECT_EQ(Generate(stub(), Request({4, 5}, 5)).tokens, TokensAfter({4, 5}, 5));
    engine.SetOthers(3, 50);
    EXPECT_TRUE(cluster_->WaitFor("its load", [](const v1::ClusterState& state) {
      return state.workers(0).engine_requests() == 6 && state.workers(0).engine_tokens() == 300;
    }));
  }
}

// The engine aborts every request whose name begins with the given one.
TEST_F(SglangEngines, AClientThatLeavesIsAbortedAndNoOtherRequest) {
  const HeldPort port;
  Engine::Options options = At(port);
  options.slots = 8;
  Engine engine(options);
  Serve({port.address()}, 1);
  CallOf<Sglang> leaves(gateway(), GreedyRequest<Sglang>(4'000));
  ASSERT_TRUE(leaves.Read());
  const std::string name = engine.exchanges().at(0).request.request_id();
  const std::string number = name.substr(0, name.find_last_not_of('-') + 1);
  // Makes calls until a call's number begins with the earlier call's number.
  do {
    ASSERT_TRUE(GenerateAs<Sglang>(gateway(), GreedyRequest<Sglang>(1)).status.ok());
  } while (!engine.exchanges().back().request.request_id().starts_with(number));
  // Sampled, so that another engine could not continue it.
  Sglang::GenerateRequest request = GreedyRequest<Sglang>(300);
  request.mutable_sampling_params()->set_temperature(1);
  std::vector<std::unique_ptr<CallOf<Sglang>>> calls;
  for (int i = 0; i < 5; ++i) {
    calls.push_back(std::make_unique<CallOf<Sglang>>(gateway(), request));
    ASSERT_TRUE(calls.back()->Read());
  }
  leaves.Cancel();
  EXPECT_TRUE(Eventually([&] { return engine.counts().running <= 5; }));
  for (const auto& call : calls) {
    EXPECT_TRUE(call->End().status.ok()) << call->outputs().status.error_message();
    EXPECT_EQ(call->outputs().tokens.at(0).size(), 300u);
  }
}

}  // namespace
}  // namespace bfio::testing
