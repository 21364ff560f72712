// bfio_worker --serve=vllm: ranks that gateways call without a router.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/status.h"
#include "tests/testing/cluster.h"
#include "tests/testing/http_get.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Lt;
using ::testing::SizeIs;

const absl::Duration kPatience = kSlowdown * absl::Seconds(60);

// A worker with --serve, on a free port.
class Engine {
 public:
  explicit Engine(std::vector<std::string> flags)
      : process_("bfio_worker", WithPort(std::move(flags), port_.address())) {
    if (!process_.WaitForOutput("API at", kPatience)) ADD_FAILURE() << process_.Stderr();
  }

  pb::VllmEngine::Stub& stub() { return *stub_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }
  Process& process() { return process_; }
  pb::GetLoadsResponse Loads() {
    pb::GetLoadsResponse loads;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->GetLoads(&context, {}, &loads).ok());
    return loads;
  }
  // Number of running requests, and of waiting ones, by rank.
  std::vector<int> Running() { return Each(&pb::SchedulerLoad::num_running_reqs); }
  std::vector<int> Waiting() { return Each(&pb::SchedulerLoad::num_waiting_reqs); }
  // Prompt tokens of the waiting requests, by rank.
  std::vector<int> PromptTokens() { return Each(&pb::SchedulerLoad::num_waiting_uncached_tokens); }
  bool WaitUntilIdle() {
    return Eventually([&] {
      const auto loads = Loads();
      return std::all_of(loads.loads().begin(), loads.loads().end(),
                         [](const pb::SchedulerLoad& load) { return load.num_total_reqs() == 0; });
    });
  }

 private:
  static std::vector<std::string> WithPort(std::vector<std::string> flags, const std::string& address) {
    flags.insert(flags.end(), {"--serve=vllm", "--listen=" + address});
    return flags;
  }
  std::vector<int> Each(int32_t (pb::SchedulerLoad::*field)() const) {
    std::vector<int> values;
    const pb::GetLoadsResponse loads = Loads();
    for (const pb::SchedulerLoad& load : loads.loads()) values.push_back((load.*field)());
    return values;
  }

  const HeldPort port_;
  Process process_;
  const std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(port_.address(), grpc::InsecureChannelCredentials());
  const std::unique_ptr<pb::VllmEngine::Stub> stub_ = pb::VllmEngine::NewStub(channel_);
};

const std::vector<std::string> kFast = {"--c=0.0005", "--tl=0", "--slots=16"};
// Steps slow enough to act between them.
const std::vector<std::string> kSlow = {"--c=0.02", "--tl=0", "--slots=2", "--ranks_per_process=3",
                                        "--kv_tokens=100000"};

std::vector<std::string> With(std::vector<std::string> flags, const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

// --- the same tokens with and without a router ---

std::vector<pb::GenerateRequest> Requests(uint32_t vocabulary) {
  std::vector<pb::GenerateRequest> requests;
  for (uint32_t i = 0; i < 12; ++i) {
    pb::GenerateRequest& request = requests.emplace_back(Request(20 + 3 * i, i % 3 != 0));
    for (uint32_t t = 0; t < 30 * i; ++t) {
      request.mutable_tokenized()->add_input_ids((i + 7 * t) % vocabulary);
    }
    pb::SamplingParams& sampling = *request.mutable_sampling_params();
    sampling.set_seed(static_cast<int>(i));
    sampling.set_temperature(i % 2 == 0 ? 0 : 0.75f);
    if (i % 4 == 1) sampling.set_top_k(20);
    if (i == 5) sampling.set_n(3);
  }
  return requests;
}

void ExpectTheTokensOfARouter(const std::vector<std::string>& flags, uint32_t vocabulary) {
  ClusterOptions options = {.worker_flags = flags};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  const auto behind = StubAt(cluster.address());
  Engine alone(With(flags, {"--ranks_per_process=2"}));
  const std::vector<pb::GenerateRequest> requests = Requests(vocabulary);
  // Concurrently on the serving worker, one at a time behind the router.
  std::vector<std::unique_ptr<Call>> calls;
  for (const pb::GenerateRequest& request : requests)
    calls.push_back(std::make_unique<Call>(alone.stub(), request, kPatience));
  for (size_t i = 0; i < requests.size(); ++i) {
    const Outputs expected = Generate(*behind, requests[i]);
    ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
    const Outputs& got = calls[i]->End();
    EXPECT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_EQ(got.tokens, expected.tokens) << i;
    for (const auto& [index, end] : expected.ends) {
      EXPECT_EQ(got.ends.at(index).finish_reason(), end.finish_reason());
      EXPECT_EQ(got.ends.at(index).completion_tokens(), end.completion_tokens());
      EXPECT_EQ(got.ends.at(index).prompt_tokens(), end.prompt_tokens());
    }
  }
}

TEST(WorkerServe, SimGivesTheTokensOfARouter) {
  ExpectTheTokensOfARouter(kFast, 1000);
}

TEST(WorkerServe, CpuGivesTheTokensOfARouter) {
  ExpectTheTokensOfARouter(
      {"--engine=cpu", "--model=tests/golden/qwen3", "--slots=4", "--kv_tokens=4096", "--token_budget=48"},
      256);
}

TEST(WorkerServe, RanksThatShareTheModelGiveTheTokensOfARouter) {
  ExpectTheTokensOfARouter({"--engine=cpu", "--model=tests/golden/qwen3", "--slots=4", "--kv_tokens=4096",
                            "--token_budget=48", "--mlp=tp"},
                           256);
}

// Memory for one and a half requests: some are preempted, and continue where they stopped.
TEST(WorkerServe, PreemptedRequestsGiveTheirTokens) {
  Engine wide(kFast), narrow(With(kFast, {"--kv_tokens=300", "--max_sequence_tokens=250"}));
  std::vector<std::unique_ptr<Call>> calls;
  for (int seed = 0; seed < 6; ++seed) {
    pb::GenerateRequest request = Request(200);
    request.mutable_sampling_params()->set_seed(seed);
    calls.push_back(std::make_unique<Call>(narrow.stub(), request, kPatience));
  }
  for (int seed = 0; seed < 6; ++seed) {
    pb::GenerateRequest request = Request(200);
    request.mutable_sampling_params()->set_seed(seed);
    EXPECT_EQ(calls[seed]->End().tokens, Generate(wide.stub(), request).tokens) << seed;
  }
  EXPECT_TRUE(narrow.WaitUntilIdle());
}

// The rank starts the shortest of the requests placed together; those that it refuses run later.
TEST(WorkerServe, RequestsThatAreRefusedForKvEnd) {
  for (const char* admission : {"mc_sf", "kv_feasible"}) {
    SCOPED_TRACE(admission);
    Engine engine(With(
        kFast, {"--kv_tokens=300", "--max_sequence_tokens=250", absl::StrCat("--admission=", admission)}));
    std::vector<std::unique_ptr<Call>> calls;
    const std::vector<int> lengths = {100, 200, 90, 190, 80, 180, 70};
    for (const int length : lengths)
      calls.push_back(std::make_unique<Call>(engine.stub(), Request(length), kPatience));
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_TRUE(calls[i]->End().status.ok()) << i << ": " << calls[i]->End().status.error_message();
      EXPECT_THAT(calls[i]->End().tokens.at(0), SizeIs(lengths[i]));
    }
  }
}

TEST(WorkerServe, TokensAreBelowTheVocabulary) {
  Engine engine(With(kFast, {"--vocab=300"}));
  EXPECT_THAT(Generate(engine.stub(), Request(200)).tokens.at(0), Each(Lt(300u)));
}

// --- descriptions and metrics ---

TEST(WorkerServe, RanksAppearInLoadsAndMetrics) {
  Engine engine(With(kSlow, {"--tokenizer=" + NumbersTokenizer()}));
  grpc::ClientContext one, two, three, four;
  pb::GetServerInfoResponse server;
  ASSERT_TRUE(engine.stub().GetServerInfo(&one, {}, &server).ok());
  EXPECT_EQ(server.data_parallel_size(), 3);
  EXPECT_EQ(server.max_num_seqs(), 2);
  pb::GetModelInfoResponse model;
  ASSERT_TRUE(engine.stub().GetModelInfo(&two, {}, &model).ok());
  EXPECT_EQ(server.block_size(), 0) << "sim has no pages";
  EXPECT_EQ(model.served_model_name(), "numbers");
  EXPECT_EQ(model.max_context_length(), 100'000u) << "KV memory holds no more";
  pb::HealthCheckResponse health;
  ASSERT_TRUE(engine.stub().HealthCheck(&three, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  const pb::GetLoadsResponse loads = engine.Loads();
  EXPECT_EQ(loads.dp_rank_count(), 3);
  EXPECT_EQ(loads.loads(2).dp_rank(), 2);
  EXPECT_EQ(loads.loads(2).max_total_num_tokens(), 300'000) << "vLLM adds up the memory of its ranks";
  common_pb::SubscribeKvEventsRequest subscribe;
  subscribe.set_load_records_before_first_batch(true);
  const auto records = engine.stub().SubscribeKvEvents(&four, subscribe);
  for (int rank = 0; rank < 3; ++rank) {
    common_pb::KvEventBatch batch;
    ASSERT_TRUE(records->Read(&batch));
    EXPECT_EQ(batch.dp_rank(), rank);
    EXPECT_EQ(batch.load().max_running_requests(), 2u);
  }
  four.TryCancel();
}

// --- ranks ---

TEST(WorkerServe, ARankThatIsNamedIsHeldTo) {
  const HeldPort web;
  Engine engine(With(kSlow, {"--served_model_name=m", "--http_listen=" + web.address()}));
  pb::GenerateRequest request = Request(2000);
  request.set_data_parallel_rank(2);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(std::make_unique<Call>(engine.stub(), request));
  EXPECT_TRUE(Eventually([&] {
    return engine.Waiting() == std::vector<int>{0, 0, 3} && engine.Running() == std::vector<int>{0, 0, 2};
  })) << "a rank has two slots; the others stay empty";
  EXPECT_EQ(engine.PromptTokens(), (std::vector<int>{0, 0, 3 * request.tokenized().input_ids_size()}));
  const std::string metrics = HttpGet(web.address(), "/metrics").value_or("");
  EXPECT_THAT(metrics, HasSubstr("\nvllm:num_requests_running{model_name=\"m\"} 2\n"));
  EXPECT_THAT(metrics, HasSubstr("\nvllm:num_requests_waiting{model_name=\"m\"} 3\n"));
  // 2 requests of about 2,000 tokens each, of 300,000; from the rank's next report.
  EXPECT_TRUE(Eventually([&] {
    return HttpGet(web.address(), "/metrics")
               .value_or("")
               .find("\nvllm:kv_cache_usage_perc{model_name=\"m\"} 0.01") != std::string::npos;
  }));
  request.set_data_parallel_rank(3);
  const Outputs refused = Generate(engine.stub(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("data_parallel_rank is 3"));
  calls.clear();
  EXPECT_TRUE(engine.WaitUntilIdle()) << "closed calls free their slots";
}

TEST(WorkerServe, RequestsSpreadOverTheRanks) {
  Engine engine(kSlow);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 9; ++i) calls.push_back(std::make_unique<Call>(engine.stub(), Request(30), kPatience));
  EXPECT_TRUE(Eventually([&] {
    return engine.Waiting() == std::vector<int>{1, 1, 1} && engine.Running() == std::vector<int>{2, 2, 2};
  }));
  for (const auto& call : calls) {
    EXPECT_TRUE(call->End().status.ok());
    EXPECT_THAT(call->End().tokens.at(0), SizeIs(30));
  }
}

// The ranks park together, and a request to one of them wakes them together.
TEST(WorkerServe, IdleRanksWakeAgain) {
  Engine engine(With(kFast, {"--ranks_per_process=4", "--barrier=star"}));
  for (int i = 0; i < 200; ++i) {
    pb::GenerateRequest request = Request(1 + i % 3);
    if (i % 2 == 0) request.set_data_parallel_rank(i % 4);
    const Outputs outputs = Generate(engine.stub(), request);
    ASSERT_TRUE(outputs.status.ok()) << outputs.status.error_message();
    ASSERT_THAT(outputs.tokens.at(0), SizeIs(1 + i % 3));
  }
}

// --- a recorded session of SMG ---

// The calls that SMG 1.13 makes to ranks among which it chooses; the line format is that of vllm_api_test.cc.
// The request that SMG aborts would take a minute here, and is aborted as soon as it has a token.
TEST(WorkerServe, ARecordedSessionOfSmgThatChoosesRanksGetsItsAnswers) {
  Engine engine({"--engine=cpu", "--model=tests/golden/qwen2", "--slots=4", "--kv_tokens=4096",
                 "--token_budget=48", "--ranks_per_process=2", "--tokenizer=" + NumbersTokenizer()});
  Engine slow(kSlow);
  std::ifstream in("tests/integration/smg_sessions/dp_aware.txt");
  ASSERT_TRUE(in.good());
  int with_logprobs = 0, aborted = 0;
  std::set<int32_t> ranks;
  std::unique_ptr<Call> live;
  std::string live_id;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    ASSERT_GE(words.size(), 2u) << line;
    const std::string bytes = words.size() > 2 ? absl::HexStringToBytes(words[2]) : "";
    if (words[0] == "/vllm.grpc.engine.VllmEngine/Abort") {
      pb::AbortRequest abort;
      ASSERT_TRUE(abort.ParseFromString(bytes));
      ASSERT_EQ(abort.request_ids_size(), 1);
      EXPECT_EQ(abort.request_ids(0), live_id);
      pb::AbortResponse response;
      grpc::ClientContext context;
      ASSERT_TRUE(slow.stub().Abort(&context, abort, &response).ok());
      EXPECT_TRUE(live->End().status.ok()) << live->End().status.error_message();
      EXPECT_EQ(live->End().reason(), "abort");
      EXPECT_TRUE(slow.WaitUntilIdle());
      ++aborted;
      continue;
    }
    if (words[0] != "/vllm.grpc.engine.VllmEngine/Generate") {
      const grpc::Status status = RawCall(engine.channel(), words[0], bytes).second;
      EXPECT_EQ(absl::StatusCodeToString(FromGrpcStatus(status).code()), words[1]) << line;
      continue;
    }
    pb::GenerateRequest request;
    ASSERT_TRUE(request.ParseFromString(bytes));
    const pb::SamplingParams& sampling = request.sampling_params();
    ranks.insert(request.data_parallel_rank());
    if (sampling.ignore_eos()) {
      live = std::make_unique<Call>(slow.stub(), request, kPatience);
      live_id = request.request_id();
      ASSERT_TRUE(live->Read());
      continue;
    }
    const Outputs outputs = Generate(engine.stub(), request);
    EXPECT_EQ(absl::StatusCodeToString(FromGrpcStatus(outputs.status).code()), words[1])
        << outputs.status.error_message();
    EXPECT_THAT(outputs.ends, SizeIs(sampling.n()));
    for (const auto& [index, end] : outputs.ends) {
      EXPECT_EQ(end.completion_tokens(), outputs.tokens.at(index).size());
      EXPECT_THAT(outputs.tokens.at(index), SizeIs(Le(sampling.max_tokens())));
      if (!sampling.has_logprobs() || sampling.logprobs() == 0) continue;
      ++with_logprobs;
      EXPECT_EQ(Tokens(outputs.logprobs.at(index).token_ids().begin(),
                       outputs.logprobs.at(index).token_ids().end()),
                outputs.tokens.at(index));
      for (const auto& top : outputs.logprobs.at(index).top_logprobs())
        EXPECT_EQ(top.token_ids_size(), sampling.logprobs());
    }
  }
  EXPECT_EQ(ranks, (std::set<int32_t>{0, 1}));
  EXPECT_EQ(with_logprobs, 4);
  EXPECT_EQ(aborted, 1);
}

// --- ends ---

TEST(WorkerServe, AnAbortEndsAllOutputsWithWhatTheyHave) {
  Engine engine(kSlow);
  pb::GenerateRequest request = Request(2000);
  request.set_request_id("victim");
  request.mutable_sampling_params()->set_n(2);
  Call call(engine.stub(), request);
  while (call.outputs().tokens.size() < 2) ASSERT_TRUE(call.Read());
  const Outputs twice = Generate(engine.stub(), request);
  EXPECT_EQ(twice.status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  pb::AbortRequest abort;
  abort.add_request_ids("victim");
  abort.add_request_ids("nobody");
  pb::AbortResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(engine.stub().Abort(&context, abort, &response).ok());
  const Outputs& outputs = call.End();
  EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
  for (const uint32_t index : {0u, 1u}) {
    EXPECT_EQ(outputs.reason(index), "abort");
    EXPECT_EQ(outputs.ends.at(index).completion_tokens(), outputs.tokens.at(index).size());
  }
  EXPECT_TRUE(engine.WaitUntilIdle());
}

TEST(WorkerServe, StopTextsEndAnOutput) {
  Engine engine(With(kFast, {"--tokenizer=" + NumbersTokenizer()}));
  const Tokens all = Generate(engine.stub(), Request(20)).tokens.at(0);
  pb::GenerateRequest request = Request(20);
  request.mutable_sampling_params()->add_stop(absl::StrCat("<", all[3], ">"));
  const Outputs outputs = Generate(engine.stub(), request);
  EXPECT_EQ(outputs.tokens.at(0), Tokens(all.begin(), all.begin() + 4));
  EXPECT_EQ(outputs.reason(), "stop");
  EXPECT_TRUE(engine.WaitUntilIdle());
}

// A prompt for which the model has no finite logits.
TEST(WorkerServe, ARequestThatCannotGoOnFailsAlone) {
  Engine engine(kSlow);
  Call other(engine.stub(), Request(30), kPatience);
  pb::GenerateRequest request = Request(5);
  request.mutable_tokenized()->add_input_ids(0xffffffff);
  EXPECT_EQ(Generate(engine.stub(), request).status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_TRUE(other.End().status.ok());
  EXPECT_THAT(other.End().tokens.at(0), SizeIs(30));
}

TEST(WorkerServe, ATimeThatIsUpEndsARequest) {
  Engine engine(kSlow);
  Call call(engine.stub(), Request(2000), absl::Milliseconds(300));
  EXPECT_EQ(call.End().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(engine.WaitUntilIdle());
}

TEST(WorkerServe, UnsupportedRequestsAreRefusedByName) {
  Engine engine(kFast);
  const auto refused = [&](const pb::GenerateRequest& request, const std::string& what) {
    const Outputs outputs = Generate(engine.stub(), request);
    EXPECT_EQ(outputs.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << what;
    EXPECT_THAT(outputs.status.error_message(), HasSubstr(what));
  };
  pb::GenerateRequest request = Request(5);
  request.mutable_sampling_params()->set_min_p(0.1f);
  refused(request, "min_p");
  request = Request(5);
  request.set_text("hello");
  refused(request, "text");
  request = Request(5);
  request.mutable_sampling_params()->add_stop("x");
  refused(request, "stop");
  refused(Request(60'000'000), "max_new_tokens");
  Engine small(With(kFast, {"--max_sequence_tokens=20"}));
  const Outputs outputs = Generate(small.stub(), Request(50));
  EXPECT_EQ(outputs.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(outputs.status.error_message(), HasSubstr("the engine holds at most 20"));
}

TEST(WorkerServe, SigtermLetsRequestsEndAndTakesNoMore) {
  Engine engine(kSlow);
  Call call(engine.stub(), Request(100), kPatience);
  ASSERT_TRUE(call.Read());
  engine.process().Signal(SIGTERM);
  EXPECT_TRUE(Eventually([&] {
    pb::HealthCheckResponse health;
    grpc::ClientContext context;
    return engine.stub().HealthCheck(&context, {}, &health).ok() && !health.healthy();
  }));
  EXPECT_EQ(Generate(engine.stub(), Request(5)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(call.End().status.ok()) << call.End().status.error_message();
  EXPECT_THAT(call.End().tokens.at(0), SizeIs(100));
  EXPECT_EQ(engine.process().Wait(kPatience), 0);
}

TEST(WorkerServe, RequestsThatOutlastTheDrainAreCutOff) {
  Engine engine(With(kSlow, {"--drain_timeout=0s"}));
  Call call(engine.stub(), Request(2000), kPatience);
  ASSERT_TRUE(call.Read());
  engine.process().Signal(SIGTERM);
  EXPECT_EQ(call.End().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(engine.process().Wait(kPatience), 0);
}

TEST(WorkerServe, FlagsThatDoNotGoTogetherAreRefused) {
  for (const auto& [flags, what] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--listen=127.0.0.1:0"}, "--listen requires --serve=vllm"},
           {{"--serve=vllm", "--router=127.0.0.1:1"}, "--router cannot be combined with --serve"},
           {{"--serve=vllm", "--listen=0.0.0.0:0"}, "--insecure"},
           {{"--serve=vllm", "--listen=nowhere"}, "--listen"},
           {{"--serve=sglang"}, "--serve"},
           {{"--serve=vllm", "--tokenizer=/nowhere"}, "--tokenizer: /nowhere"},
           {{"--vocab=3"}, "--vocab"}}) {
    const RunResult result = RunProgram("bfio_worker", flags);
    EXPECT_NE(result.code, 0) << what;
    EXPECT_THAT(result.err, HasSubstr(what));
  }
}

}  // namespace
}  // namespace bfio::testing
