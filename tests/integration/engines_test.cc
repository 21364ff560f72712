// A router in front of engines that know nothing of it (--engines): vLLM servers, those that behave and those
// that do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bfio/v1/engine_steps.grpc.pb.h"
#include "common/base/clock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/scripted_engine.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// A gateway's request, greedy and as a stream.
pb::GenerateRequest FromGateway(const Tokens& prompt, uint32_t output) {
  pb::GenerateRequest request;
  request.set_stream(true);
  request.mutable_tokenized()->mutable_input_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling_params()->set_temperature(0);
  request.mutable_sampling_params()->set_max_tokens(output);
  return request;
}

v1::GenerateRequest Request(const Tokens& prompt, uint32_t output) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.set_max_new_tokens(output);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

class EnginesTest : public ::testing::Test {
 protected:
  static ScriptedEngine::Options At(const HeldPort& port, int32_t ranks = 1) {
    ScriptedEngine::Options options;
    options.listen = port.address();
    options.ranks = ranks;
    return options;
  }
  // A router in front of `engines`, which have so many ranks in all.
  void ServeEngines(const std::string& engines, int ranks, std::vector<std::string> flags = {}) {
    ClusterOptions options;
    options.worker_processes = 0;
    options.ranks = ranks;
    options.router_flags = std::move(flags);
    options.router_flags.push_back("--engines=" + engines);
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_TRUE(cluster_->ok());
  }
  // Of engines at these addresses; `query` as in --engines.
  void Serve(const std::vector<std::string>& addresses, int ranks, std::vector<std::string> flags = {},
             const std::string& query = "") {
    std::string engines;
    for (const std::string& address : addresses)
      absl::StrAppend(&engines, engines.empty() ? "" : ",", "vllm://", address);
    ServeEngines(engines + query, ranks, std::move(flags));
  }
  v1::Inference::Stub& stub() { return cluster_->inference(); }
  // As a gateway calls it.
  pb::VllmEngine::Stub& gateway() {
    if (gateway_ == nullptr) {
      gateway_ = pb::VllmEngine::NewStub(
          grpc::CreateChannel(cluster_->address(), grpc::InsecureChannelCredentials()));
    }
    return *gateway_;
  }
  // Requests on an engine that makes no steps any more get their tokens from another one.
  void ExpectToLeave(bool healthy);

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<pb::VllmEngine::Stub> gateway_;
};

TEST_F(EnginesTest, TokensAreTheEnginesOverRanksAndServers) {
  const HeldPort a, b;
  ScriptedEngine one(At(a, 2)), two(At(b, 2));
  Serve({a.address(), b.address()}, 4);
  std::vector<std::unique_ptr<RequestStream>> streams;
  std::vector<Tokens> prompts;
  for (uint32_t i = 0; i < 40; ++i) {
    prompts.push_back(Tokens(5 + i % 7, 2'000 + i));
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(prompts.back(), 3 + i % 20)));
  }
  for (uint32_t i = 0; i < 40; ++i) {
    const GenerateResult& result = streams[i]->End();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_TRUE(result.contiguous);
    EXPECT_EQ(result.tokens, TokensAfter(prompts[i], 3 + i % 20));
    EXPECT_EQ(result.finishes, 1);
    EXPECT_EQ(result.finish.usage().completion_tokens(), 3 + i % 20);
  }
  EXPECT_THAT(one.counts().by_rank, Each(Gt(0)));
  EXPECT_THAT(two.counts().by_rank, Each(Gt(0)));
  EXPECT_TRUE(cluster_->WaitFor("ranks that are empty", [](const v1::ClusterState& state) {
    for (const v1::WorkerState& worker : state.workers())
      if (worker.active_requests() > 0 || worker.load_tokens() > 0) return false;
    return state.workers_size() == 4;
  }));
  cluster_->StopCleanly();
}

TEST_F(EnginesTest, RequestsWaitInTheRouterNotInTheEngine) {
  constexpr int kSlots = 4, kTokens = 8, kRequests = 60;
  const HeldPort port;
  ScriptedEngine::Options options = At(port, 2);
  options.slots = kSlots;
  options.step = absl::Milliseconds(20);
  ScriptedEngine engine(options);
  Serve({port.address()}, 2);
  const auto asks =
      pb::VllmEngine::NewStub(grpc::CreateChannel(port.address(), grpc::InsecureChannelCredentials()));
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < kRequests; ++i)
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(Tokens(4, 3'000 + i), kTokens)));
  // What GetLoads says beyond the slots is the credit: what ends in a round trip and a step, and one more. As
  // many end in a step as there are slots for each step of a request; somewhat more than that at times.
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
  EXPECT_LE(most, kSlots + std::min<double>(credit, kSlots)) << "round trip " << round_trip;
  EXPECT_GE(most, kSlots) << "no rank was full";
  EXPECT_GT(looks, 10);
  EXPECT_EQ(engine.counts().taken, kRequests);
}

// One server with all ranks, one for each, and two with half of them each: external and hybrid load balancing
// of vLLM, whose servers name all ranks in GetServerInfo, and their own in GetLoads.
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
    Serve(addresses, kAll, {}, "?barrier=b");
    std::vector<std::unique_ptr<RequestStream>> streams;
    for (uint32_t i = 0; i < 40; ++i)
      streams.push_back(std::make_unique<RequestStream>(stub(), Request(Tokens(5, 2'000 + i), 10)));
    for (uint32_t i = 0; i < 40; ++i)
      EXPECT_EQ(streams[i]->End().tokens, TokensAfter(Tokens(5, 2'000 + i), 10));
    // Other clients' requests on the last server are found at its ranks.
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

TEST_F(EnginesTest, LoadsOfRanksThatDoNotExistCountForNone) {
  const HeldPort port;
  ScriptedEngine engine(At(port, 2));
  engine.SetOthers(3, 50);
  Serve({port.address()}, 2);
  EXPECT_TRUE(Generate(stub(), Request({5, 6}, 4)).status.ok());
  const auto wait = [&](const char* what, bool told) {
    return cluster_->WaitFor(what, [told](const v1::ClusterState& state) {
      return state.workers_size() == 2 && state.workers(0).has_engine_requests() == told &&
             state.workers(1).has_engine_requests() == told;
    });
  };
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < 2; ++i) {
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(Tokens(4, 3'000 + i), 3'900)));
    ASSERT_TRUE(streams.back()->Read());
  }
  EXPECT_TRUE(wait("loads", true));
  engine.SetLoads(ScriptedEngine::Loads::kWrongRank);
  EXPECT_TRUE(wait("loads that are told no more", false));
}

TEST_F(EnginesTest, SlotsThatOtherClientsUseAreNotTheRouters) {
  const HeldPort port;
  ScriptedEngine::Options options = At(port);
  options.step = absl::Milliseconds(10);
  ScriptedEngine engine(options);
  Serve({port.address()}, 1);
  // A rank reports once it has had a plan.
  EXPECT_TRUE(Generate(stub(), Request({5, 6}, 4)).status.ok());
  engine.SetOthers(3, 50);
  // It has said so twice. Two more may wait for a slot, where one has ended lately.
  ASSERT_TRUE(cluster_->WaitFor("slots that others use", [](const v1::ClusterState& state) {
    return state.workers_size() == 1 && state.workers(0).extra_slots() < 0 &&
           state.workers(0).engine_requests() == 3 && state.workers(0).engine_tokens() == 150;
  }));
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < 12; ++i)
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(Tokens(4, 3'100 + i), 30)));
  for (const auto& stream : streams) EXPECT_EQ(stream->End().tokens.size(), 30u);
  // Without the correction three would wait, and those that may wait for the next slot.
  EXPECT_LE(engine.counts().longest_queue, 3);
  engine.SetOthers(0, 0);
  EXPECT_TRUE(cluster_->WaitFor("slots that are free again", [](const v1::ClusterState& state) {
    return state.workers_size() == 1 && state.workers(0).extra_slots() >= 0;
  }));
}

// vLLM reports for each rank the KV memory of all ranks of the server, and the rank's use as a share of that.
TEST_F(EnginesTest, ARanksMemoryIsItsShareOfTheServers) {
  const HeldPort port;
  ScriptedEngine::Options options = At(port, 4);
  options.kv_tokens = 1'000;
  ScriptedEngine engine(options);
  Serve({port.address()}, 4);
  engine.SetOthers(2, 50);
  EXPECT_TRUE(Generate(stub(), Request({5, 6}, 4)).status.ok());
  // Of its use a rank reports once it has had a plan.
  EXPECT_TRUE(cluster_->WaitFor("use", [](const v1::ClusterState& state) {
    return std::any_of(state.workers().begin(), state.workers().end(),
                       [](const v1::WorkerState& worker) { return worker.engine_tokens() == 100; });
  }));
  const v1::ClusterState state = cluster_->State();
  EXPECT_EQ(state.workers_size(), 4);
  for (const v1::WorkerState& worker : state.workers()) EXPECT_EQ(worker.kv_tokens(), 1'000u);
}

TEST_F(EnginesTest, LoadsThatAreWrongOrNeverComeBlockNothing) {
  const HeldPort port;
  ScriptedEngine engine(At(port, 2));
  Serve({port.address()}, 2);
  for (const auto loads :
       {ScriptedEngine::Loads::kTrue, ScriptedEngine::Loads::kWrong, ScriptedEngine::Loads::kSlow}) {
    engine.SetLoads(loads);
    if (loads == ScriptedEngine::Loads::kWrong) {
      EXPECT_TRUE(cluster_->WaitFor("loads that are wrong", [](const v1::ClusterState& state) {
        return state.workers_size() == 2 && state.workers(0).engine_requests() > 900'000 &&
               state.workers(1).engine_requests() > 900'000;
      }));
    }
    std::vector<std::unique_ptr<RequestStream>> streams;
    std::vector<Tokens> prompts;
    for (uint32_t i = 0; i < 12; ++i) {
      prompts.push_back(Tokens(4, 3'200 + i));
      streams.push_back(std::make_unique<RequestStream>(stub(), Request(prompts.back(), 30)));
    }
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_EQ(streams[i]->End().tokens, TokensAfter(prompts[i], 30));
  }
}

TEST_F(EnginesTest, AClientThatLeavesEndsItsRequestInTheEngine) {
  const HeldPort port;
  ScriptedEngine engine(At(port));
  Serve({port.address()}, 1);
  RequestStream stream(stub(), Request({7, 8, 9}, 4'000));
  ASSERT_TRUE(stream.Read());
  stream.Cancel();
  const absl::Time deadline = MonotonicNow() + kSlowdown * absl::Seconds(20);
  while (engine.counts().running > 0 && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(engine.counts().running, 0);
  EXPECT_EQ(engine.counts().cancelled, 1);
}

TEST_F(EnginesTest, RequestsOfAKilledEngineContinueOnAnother) {
  const HeldPort a, b;
  ScriptedEngine one(At(a)), two(At(b));
  Serve({a.address(), b.address()}, 2);
  std::vector<std::unique_ptr<RequestStream>> streams;
  std::vector<Tokens> prompts;
  for (uint32_t i = 0; i < 6; ++i) {
    prompts.push_back(Tokens(6, 4'000 + i));
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(prompts.back(), 300)));
    ASSERT_TRUE(streams.back()->Read());
  }
  one.Kill();
  for (uint32_t i = 0; i < 6; ++i) {
    const GenerateResult& result = streams[i]->End();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_TRUE(result.contiguous);
    EXPECT_EQ(result.tokens, TokensAfter(prompts[i], 300));
  }
}

TEST_F(EnginesTest, WhatIsSampledWithASeedEndsWithItsEngine) {
  const HeldPort a, b;
  ScriptedEngine one(At(a)), two(At(b));
  Serve({a.address(), b.address()}, 2);
  v1::GenerateRequest seeded = Request(Tokens(6, 4'500), 2'000);
  seeded.mutable_sampling()->set_temperature(1);
  seeded.mutable_sampling()->set_seed(11);
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (int i = 0; i < 2; ++i) {
    streams.push_back(std::make_unique<RequestStream>(stub(), seeded));
    ASSERT_TRUE(streams.back()->Read());
  }
  ASSERT_EQ(one.counts().taken + two.counts().taken, 2);
  RequestStream greedy(stub(), Request(Tokens(6, 4'500), 2'000));
  ASSERT_TRUE(greedy.Read());
  // At once: no engine is there.
  one.Kill();
  two.Kill();
  for (const auto& stream : streams) {
    const GenerateResult& result = stream->End();
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE) << result.status.error_message();
    EXPECT_THAT(result.status.error_message(), HasSubstr("seed"));
  }
  // A request that another engine can continue waits for one.
  ScriptedEngine again(At(a));
  EXPECT_EQ(greedy.End().tokens, TokensAfter(Tokens(6, 4'500), 2'000));
}

TEST_F(EnginesTest, AnEngineThatComesBackWithOtherSizesServesAgain) {
  const HeldPort port;
  auto engine = std::make_unique<ScriptedEngine>(At(port, 1));
  Serve({port.address()}, 1);
  EXPECT_TRUE(Generate(stub(), Request({5, 6}, 4)).status.ok());
  engine.reset();
  ASSERT_TRUE(cluster_->WaitFor("the engine to be missed",
                                [](const v1::ClusterState& state) { return state.workers_size() == 0; }));
  ScriptedEngine::Options options = At(port, 3);
  options.slots = 9;
  engine = std::make_unique<ScriptedEngine>(options);
  ASSERT_TRUE(cluster_->WaitFor("three ranks", [](const v1::ClusterState& state) {
    int serving = 0;
    for (const v1::WorkerState& worker : state.workers())
      serving += worker.phase() == v1::WORKER_PHASE_SERVING && worker.slots() == 9;
    return serving == 3;
  }));
  EXPECT_EQ(Generate(stub(), Request({5, 6}, 4)).tokens, TokensAfter({5, 6}, 4));
}

// An engine that does not answer health checks, and one that answers them and makes no steps.
void EnginesTest::ExpectToLeave(bool healthy) {
  const HeldPort a, b;
  ScriptedEngine one(At(a)), two(At(b));
  Serve({a.address(), b.address()}, 2, {"--step_timeout=1s"});
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < 4; ++i) {
    streams.push_back(std::make_unique<RequestStream>(stub(), Request(Tokens(6, 4'700 + i), 200)));
    ASSERT_TRUE(streams.back()->Read());
  }
  one.SetSilent(true, healthy);
  for (uint32_t i = 0; i < 4; ++i) {
    const GenerateResult& result = streams[i]->End();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens, TokensAfter(Tokens(6, 4'700 + i), 200));
  }
  one.SetSilent(false);
}

TEST_F(EnginesTest, AnEngineThatHangsIsLeft) {
  ExpectToLeave(/*healthy=*/false);
}

TEST_F(EnginesTest, AHealthyEngineWhoseDecodesStallIsLeft) {
  ExpectToLeave(/*healthy=*/true);
}

TEST_F(EnginesTest, ARequestsFaultEndsTheRequestOnly) {
  const HeldPort port;
  ScriptedEngine engine(At(port));
  Serve({port.address()}, 1);
  RequestStream good(stub(), Request({1, 2, 3}, 400));
  ASSERT_TRUE(good.Read());
  const auto code = [&](uint32_t fault) {
    return Generate(stub(), Request({fault, 2, 3}, 10)).status.error_code();
  };
  EXPECT_EQ(code(kTooManyTokens), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(code(kOtherOutput), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(code(kNoReason), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(code(kEngineError), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(code(kTwice), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(code(kMissing), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(code(kSwapped), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(code(kInternal), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(code(kBadRequest), grpc::StatusCode::INVALID_ARGUMENT);
  // It is placed again.
  const GenerateResult full = Generate(stub(), Request({kFull, 2, 3}, 10));
  EXPECT_EQ(full.tokens, TokensAfter({kFull, 2, 3}, 10));
  // These go on after their third token, again and again.
  for (const uint32_t fault : {kUnavailable, kEngineAbort}) {
    const GenerateResult moved = Generate(stub(), Request({fault, 2, 3}, 10));
    EXPECT_TRUE(moved.status.ok()) << moved.status.error_message();
    EXPECT_EQ(moved.tokens, TokensAfter({fault, 2, 3}, 10));
  }
  EXPECT_EQ(good.End().tokens, TokensAfter({1, 2, 3}, 400));
}

TEST_F(EnginesTest, APromptOfWhichOnlyTheLengthIsKnownIsFilledIn) {
  const HeldPort port;
  ScriptedEngine engine(At(port));
  Serve({port.address()}, 1);
  const GenerateResult result = Generate(stub(), SyntheticRequest(10, 12));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.tokens.size(), 12u);
  EXPECT_EQ(result.finish.usage().prompt_tokens(), 10u);
}

TEST_F(EnginesTest, ADrainedRankGetsNoNewRequestsAndLeaves) {
  const HeldPort port;
  ScriptedEngine engine(At(port, 2));
  Serve({port.address()}, 2);
  v1::DrainWorkerRequest drain;
  drain.set_worker_id(absl::StrCat("vllm://", port.address(), "#1"));
  grpc::ClientContext context;
  v1::DrainWorkerResponse response;
  ASSERT_TRUE(cluster_->admin().DrainWorker(&context, drain, &response).ok());
  ASSERT_TRUE(
      cluster_->WaitFor("one rank", [](const v1::ClusterState& state) { return state.workers_size() == 1; }));
  for (uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(Generate(stub(), Request({40 + i, 2}, 3)).status.ok());
  EXPECT_EQ(engine.counts().by_rank[1], 0);
}

// --- requests of gateways ---

// Every byte but what the router sets, whether a field is known to it or not, there and back.
TEST_F(EnginesTest, AGatewaysRequestPassesAsItCame) {
  const HeldPort port;
  ScriptedEngine engine(At(port, 2));
  Serve({port.address()}, 2);
  pb::GenerateRequest request = FromGateway({9, 8, 7}, 12);
  request.set_request_id("chatcmpl-1");
  pb::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_logprobs(2);
  sampling.set_min_p(0.25);
  sampling.set_frequency_penalty(0.5);
  sampling.set_min_tokens(3);
  sampling.set_regex("a*");
  sampling.add_stop("never");
  sampling.set_prompt_logprobs(1);
  (*sampling.mutable_logit_bias())[5] = 1;
  sampling.GetReflection()->MutableUnknownFields(&sampling)->AddLengthDelimited(77, "unknown");
  request.mutable_mm_inputs()
      ->GetReflection()
      ->MutableUnknownFields(request.mutable_mm_inputs())
      ->AddVarint(1, 2);
  request.set_kv_transfer_params_json(R"({"do_remote_prefill": true})");
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(99, "lora");
  for (const bool stream : {true, false}) {
    SCOPED_TRACE(stream);
    request.set_stream(stream);
    grpc::ClientContext context;
    const auto reader = gateway().Generate(&context, request);
    std::vector<std::string> got, sent;
    pb::GenerateResponse response;
    while (reader->Read(&response)) got.push_back(response.SerializeAsString());
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    const ScriptedEngine::Exchange exchange = engine.exchanges().back();
    for (const pb::GenerateResponse& one : exchange.responses) sent.push_back(one.SerializeAsString());
    EXPECT_EQ(got, sent);
    EXPECT_EQ(got.size(), stream ? 13u : 1u);
    pb::GenerateRequest expected = request;
    expected.set_request_id(exchange.request.request_id());
    expected.set_data_parallel_rank(exchange.request.data_parallel_rank());
    EXPECT_EQ(exchange.request.SerializeAsString(), expected.SerializeAsString());
    EXPECT_THAT(exchange.request.request_id(), StartsWith("bfio-"));
  }
  cluster_->StopCleanly();
}

// As vLLM itself makes them.
TEST_F(EnginesTest, OfSeveralOutputsEachIsARequestOfItsOwn) {
  const HeldPort port;
  ScriptedEngine engine(At(port, 2));
  Serve({port.address()}, 2);
  pb::GenerateRequest request = FromGateway({9, 8, 7}, 6);
  request.mutable_sampling_params()->set_n(3);
  request.mutable_sampling_params()->set_seed(-1);
  for (const bool stream : {true, false}) {
    request.set_stream(stream);
    const Outputs outputs = Generate(gateway(), request);
    ASSERT_TRUE(outputs.status.ok()) << outputs.status.error_message();
    ASSERT_EQ(outputs.ends.size(), 3u);
    for (const auto& [index, tokens] : outputs.tokens) EXPECT_EQ(tokens, TokensAfter({9, 8, 7}, 6)) << index;
  }
  std::vector<int> seeds;
  for (const ScriptedEngine::Exchange& one : engine.exchanges()) {
    seeds.push_back(one.request.sampling_params().seed());
    EXPECT_EQ(one.request.sampling_params().n(), 1u);
  }
  EXPECT_THAT(seeds, UnorderedElementsAre(-1, 0, 1, -1, 0, 1));
}

TEST_F(EnginesTest, OutputsThatComeWholeAreCountedMeanwhile) {
  const HeldPort port;
  ScriptedEngine::Options options = At(port);
  options.step = absl::Milliseconds(10);
  ScriptedEngine engine(options);
  Serve({port.address()}, 1);
  pb::GenerateRequest request = FromGateway(Tokens(10, 3), 20);
  request.set_stream(false);
  // From then on it is known how long a step takes.
  EXPECT_EQ(Generate(gateway(), request).tokens.at(0), TokensAfter(Tokens(10, 3), 20));
  request.mutable_sampling_params()->set_max_tokens(3'000);
  Call whole(gateway(), request);
  EXPECT_TRUE(cluster_->WaitFor("a load that grows", [](const v1::ClusterState& state) {
    return state.workers_size() == 1 && state.workers(0).load_tokens() > 10 + 20;
  }));
  // With a stream beside it, too, whose steps are seen.
  EXPECT_EQ(Generate(gateway(), FromGateway({4, 5}, 30)).tokens.at(0), TokensAfter({4, 5}, 30));
  whole.Cancel();
  EXPECT_TRUE(cluster_->WaitFor("a rank that is empty", [](const v1::ClusterState& state) {
    return state.workers_size() == 1 && state.workers(0).load_tokens() == 0;
  }));
}

TEST_F(EnginesTest, WhatPassesMovesWhereThatIsHonest) {
  const HeldPort a, b;
  ScriptedEngine::Options options = At(a);
  options.slots = 8;
  ScriptedEngine one(options);
  options.listen = b.address();
  ScriptedEngine two(options);
  Serve({a.address(), b.address()}, 2);
  const Tokens prompt(6, 4'000);
  // min_tokens tells them apart in the engines.
  const auto make = [&](uint32_t kind, auto change) {
    pb::GenerateRequest request = FromGateway(prompt, 400);
    request.mutable_sampling_params()->set_min_tokens(kind);
    change(request, *request.mutable_sampling_params());
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 3; ++i) calls.push_back(std::make_unique<Call>(gateway(), request));
    for (const auto& call : calls) EXPECT_TRUE(!request.stream() || call->Read());
    return calls;
  };
  const auto greedy = make(300, [](auto&, auto&) {});
  const auto penalty = make(301, [](auto&, auto& sampling) { sampling.set_presence_penalty(1); });
  const auto seeded =
      make(302, [](auto&, auto& sampling) { sampling.set_temperature(1), sampling.set_seed(1); });
  const auto whole = make(303, [](auto& request, auto&) { request.set_stream(false); });
  const absl::Time deadline = MonotonicNow() + kSlowdown * absl::Seconds(30);
  while (one.counts().running + two.counts().running < 12 && MonotonicNow() < deadline)
    absl::SleepFor(absl::Milliseconds(1));
  ASSERT_EQ(one.counts().running + two.counts().running, 12);
  one.Kill();
  std::map<uint32_t, int> lost;
  for (const ScriptedEngine::Exchange& exchange : one.exchanges())
    ++lost[exchange.request.sampling_params().min_tokens()];
  EXPECT_GT(lost[300], 0);
  EXPECT_GT(lost[301] + lost[302], 0);
  EXPECT_GT(lost[303], 0);
  for (const auto* calls : {&greedy, &whole}) {
    for (const auto& call : *calls) {
      const Outputs& outputs = call->End();
      EXPECT_TRUE(outputs.status.ok()) << outputs.status.error_message();
      EXPECT_EQ(outputs.tokens.at(0), TokensAfter(prompt, 400));
      EXPECT_EQ(outputs.ends.at(0).prompt_tokens(), 6u);
      // As vLLM, which counts the last chunk's tokens where there are chunks.
      EXPECT_EQ(outputs.ends.at(0).completion_tokens(), calls == &whole ? 400u : 1u);
    }
  }
  int ended = 0;
  for (const auto* calls : {&penalty, &seeded}) {
    for (const auto& call : *calls) {
      if (call->End().status.ok()) continue;
      ++ended;
      EXPECT_EQ(call->outputs().status.error_code(), grpc::StatusCode::UNAVAILABLE);
      EXPECT_THAT(call->outputs().status.error_message(), HasSubstr("another one cannot continue"));
    }
  }
  EXPECT_EQ(ended, lost[301] + lost[302]);
  int moved = 0;
  for (const ScriptedEngine::Exchange& exchange : two.exchanges()) {
    const int made = exchange.request.tokenized().input_ids_size() - 6;
    if (made == 0) continue;
    ++moved;
    EXPECT_EQ(exchange.request.sampling_params().min_tokens(), 300 - std::min(made, 300));
    EXPECT_EQ(exchange.request.sampling_params().max_tokens(), 400 - made);
  }
  EXPECT_EQ(moved, lost[300]);
}

TEST_F(EnginesTest, WhatMayBeSampledAnewMoves) {
  const HeldPort a, b;
  ScriptedEngine one(At(a)), two(At(b));
  Serve({a.address(), b.address()}, 2);
  pb::GenerateRequest request = FromGateway(Tokens(6, 4'000), 300);
  request.mutable_sampling_params()->set_temperature(1);
  request.mutable_sampling_params()->set_presence_penalty(1);
  request.mutable_sampling_params()->set_seed(7);
  const auto call = [&](const std::string& value) {
    return std::make_unique<Call>(gateway(), request, absl::InfiniteDuration(),
                                  std::map<std::string, std::string>{{"bfio-may-resample", value}});
  };
  EXPECT_EQ(call("yes")->End().status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 6; ++i) {
    calls.push_back(call("true"));
    ASSERT_TRUE(calls.back()->Read());
  }
  ASSERT_GT(one.counts().taken, 0);
  one.Kill();
  for (const auto& moved : calls) {
    EXPECT_TRUE(moved->End().status.ok()) << moved->outputs().status.error_message();
    EXPECT_EQ(moved->outputs().tokens.at(0), TokensAfter(Tokens(6, 4'000), 300));
  }
  // A request that no other engine can continue ends at once, also when there is no other engine.
  request.mutable_sampling_params()->set_regex("a*");
  const std::unique_ptr<Call> constrained = call("true");
  ASSERT_TRUE(constrained->Read());
  two.Kill();
  EXPECT_EQ(constrained->End().status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(EnginesTest, AnEnginesRefusalIsTheGatewaysAnswer) {
  const HeldPort port;
  ScriptedEngine engine(At(port));
  Serve({port.address()}, 1);
  const Outputs refused = Generate(gateway(), FromGateway({kBadRequest, 2}, 5));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("that it does not like"));
  for (const uint32_t fault : {kTooManyTokens, kTwice, kMissing, kSwapped}) {
    EXPECT_EQ(Generate(gateway(), FromGateway({fault, 2}, 5)).status.error_code(),
              grpc::StatusCode::DATA_LOSS)
        << fault;
  }
  EXPECT_EQ(Generate(gateway(), FromGateway({kInternal, 2}, 5)).status.error_code(),
            grpc::StatusCode::INTERNAL);
  // Greedy ones go on where a stream alone has ended; others end with it.
  for (const uint32_t fault : {kUnavailable, kEngineAbort}) {
    EXPECT_EQ(Generate(gateway(), FromGateway({fault, 2}, 5)).tokens.at(0), TokensAfter({fault, 2}, 5));
    pb::GenerateRequest sampled = FromGateway({fault, 2}, 5);
    sampled.mutable_sampling_params()->set_temperature(1);
    EXPECT_EQ(Generate(gateway(), sampled).status.error_code(), grpc::StatusCode::UNAVAILABLE) << fault;
  }
  EXPECT_THAT(Generate(gateway(), FromGateway({}, 5)).status.error_message(), HasSubstr("prompt is missing"));
}

// --- lists that change ---

TEST_F(EnginesTest, AServerThatTheFileNamesNoMoreFinishesAndLeaves) {
  const HeldPort a, b;
  ScriptedEngine one(At(a)), two(At(b));
  const std::string path = TestDirectory() + "/engines";
  const auto list = [&](std::vector<std::string> addresses) {
    std::ofstream out(path);
    for (const std::string& address : addresses) out << "vllm://" << address << "\n";
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
  ServeEngines("file:" + path, 1);
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

TEST_F(EnginesTest, TheAddressesOfANameAreServers) {
  const HeldPort port;
  ScriptedEngine engine(At(port, 2));
  ServeEngines(absl::StrCat("vllm+dns://localhost:", port.address().substr(port.address().find(':') + 1)), 2);
  EXPECT_EQ(Generate(stub(), Request({5, 6}, 4)).tokens, TokensAfter({5, 6}, 4));
  EXPECT_TRUE(cluster_->WaitFor("its ranks", [&](const v1::ClusterState& state) {
    return state.workers_size() == 2 &&
           state.workers(0).worker_id() == absl::StrCat("vllm://", port.address(), "#0");
  }));
}

// Two processes of two ranks with their barrier, and one of them killed: the tokens are those that a worker
// of the router gives.
TEST_F(EnginesTest, TokensOfServingWorkersAreThoseOfAttachedOnes) {
  std::vector<v1::GenerateRequest> requests;
  for (uint32_t i = 0; i < 12; ++i) requests.push_back(Request(Tokens(5 + i % 7, 100 + i), 60 + i % 30));
  const auto tokens_of = [&](Cluster& cluster, const std::function<void()>& after_start) {
    std::vector<std::unique_ptr<RequestStream>> streams;
    for (const v1::GenerateRequest& request : requests)
      streams.push_back(std::make_unique<RequestStream>(cluster.inference(), request));
    for (const auto& stream : streams) EXPECT_TRUE(stream->Read());
    after_start();
    std::vector<Tokens> tokens;
    for (const auto& stream : streams) {
      EXPECT_TRUE(stream->End().status.ok()) << stream->result().status.error_message();
      EXPECT_TRUE(stream->result().contiguous);
      tokens.push_back(stream->result().tokens);
    }
    return tokens;
  };
  const std::vector<std::string> flags = {"--engine=cpu", "--model=tests/golden/qwen3", "--slots=8",
                                          "--kv_tokens=8192", "--token_budget=48"};
  ClusterOptions attached;
  attached.worker_processes = 1;
  attached.worker_flags = flags;
  Cluster with_workers(attached);
  ASSERT_TRUE(with_workers.ok());
  const std::vector<Tokens> expected = tokens_of(with_workers, [] {});

  for (const char* query : {"", "?barrier=b&token_budget=48"}) {
    SCOPED_TRACE(query);
    const HeldPort a, b;
    const auto serve = [&](const HeldPort& port) {
      std::vector<std::string> arguments = flags;
      arguments.insert(arguments.end(),
                       {"--serve=vllm", absl::StrCat("--listen=", port.address()), "--ranks_per_process=2"});
      auto engine = std::make_unique<Process>("bfio_worker", arguments);
      EXPECT_TRUE(engine->WaitForOutput("API at", kSlowdown * absl::Seconds(30))) << engine->Stderr();
      return engine;
    };
    std::unique_ptr<Process> one = serve(a), two = serve(b);
    Serve({a.address(), b.address()}, 4, {}, query);
    EXPECT_EQ(tokens_of(*cluster_, [&] { one->Signal(SIGKILL); }), expected);
  }
}

// An engine's end of EngineSteps: reports a step and reads the answer.
class StepsClient {
 public:
  explicit StepsClient(const std::string& router)
      : stub_(v1::EngineSteps::NewStub(grpc::CreateChannel(router, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Follow(&context_)) {}
  ~StepsClient() { context_.TryCancel(); }

  // Empty when the stream has ended.
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

// A step that takes 10 ms and 0.1 ms for each token.
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
  Serve({port.address()}, 1, {}, "?barrier=b");
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
    // After steps of many sizes prompts come, and each is reported with half of it left.
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
  // Another stream, and requests, go on.
  StepsClient other(cluster_->address());
  EXPECT_TRUE(other.Report(StepOf(1, 1, 1)));
  EXPECT_TRUE(RequestStream(stub(), Request(Tokens(5, 2'000), 3)).End().status.ok());
}

TEST_F(EnginesTest, ARouterMayStartBeforeItsEngines) {
  const HeldPort port;
  Process router("bfio_router", {"--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
                                 absl::StrCat("--engines=vllm://", port.address())});
  const auto says = [&](const std::string& text) {
    const absl::Time deadline = MonotonicNow() + kSlowdown * absl::Seconds(30);
    while (router.Stderr().find(text) == std::string::npos && MonotonicNow() < deadline)
      absl::SleepFor(absl::Milliseconds(10));
    return router.Stderr();
  };
  ASSERT_THAT(says("cannot be used"), HasSubstr("cannot be used"));
  ScriptedEngine engine(At(port));
  EXPECT_THAT(says("serves with 1 ranks"), HasSubstr("serves with 1 ranks"));
}

TEST_F(EnginesTest, AddressesAreCheckedAtStart) {
  const auto refused = [](const std::string& engines) {
    return RunProgram("bfio_router",
                      {"--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0", "--engines=" + engines});
  };
  EXPECT_NE(refused("127.0.0.1:1").code, 0);
  EXPECT_NE(refused("sglang://127.0.0.1:1,vllm://127.0.0.1:2").code, 0);
  EXPECT_NE(refused("file:no/such/file").code, 0);
  EXPECT_NE(refused("vllm://127.0.0.1:1,vllm://127.0.0.1:1").code, 0);
  EXPECT_NE(refused("vllm://127.0.0.1").code, 0);
  EXPECT_NE(refused("vllm://127.0.0.1:1?barrier=a,vllm://127.0.0.1:2").code, 0);
}

}  // namespace
}  // namespace bfio::testing
