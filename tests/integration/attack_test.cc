// The effect of one faulty request, one misconfigured worker or one unauthenticated peer on a group of
// workers. Real programs over loopback. Cases that are not fixed yet: KNOWN_OPEN in CMakeLists.txt
// (tests/testing/known_open_main.cc describes how they count).
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "tests/testing/cluster.h"
#include "tests/testing/engine_alone.h"
#include "tests/testing/listening_ports.h"
#include "tests/testing/scripted_worker.h"
#include "tests/testing/token_clients.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLlama[] = "tests/golden/llama", kQwen3[] = "tests/golden/qwen3";
constexpr absl::Duration kAttackPatience = absl::Seconds(60 * kSlowdown);

ClusterOptions CpuWorkers(int workers, const std::string& model) {
  return {.worker_processes = workers,
          .worker_flags = {"--engine=cpu", absl::StrCat("--model=", model), "--slots=4", "--kv_tokens=4096",
                           "--token_budget=48"}};
}

// --- requests that fail or kill their workers ---

constexpr uint32_t kPoison = 77;

// The llama checkpoint with one token whose embedding is NaN: a prompt with this token has no finite logits.
std::string PoisonedModel() {
  const std::string folder = absl::StrCat(TestDirectory(), "/poisoned");
  if (std::filesystem::exists(folder)) return folder;
  std::filesystem::copy(kLlama, folder);
  std::fstream file(folder + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  std::string json(header, ' ');
  file.read(json.data(), static_cast<std::streamsize>(header));
  // "model.embed_tokens.weight":{"dtype":"F32","shape":[256,64],"data_offsets":[FROM,TO]}
  const std::string key = "\"data_offsets\":[";
  const size_t at = json.find(key, json.find("\"model.embed_tokens.weight\"")) + key.size();
  uint64_t from = 0;
  EXPECT_TRUE(absl::SimpleAtoi(json.substr(at, json.find(',', at) - at), &from));
  const std::vector<float> row(64, std::numeric_limits<float>::quiet_NaN());
  const auto bytes = static_cast<std::streamsize>(row.size() * sizeof(float));
  file.seekp(static_cast<std::streamoff>(8 + header + from) + kPoison * bytes);
  file.write(reinterpret_cast<const char*>(row.data()), bytes);
  return folder;
}

// Requests whose prompts and outputs do not contain the poisoned token.
struct Harmless {
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::vector<uint32_t>> tokens;

  explicit Harmless(size_t count) {
    Rng rng(22);
    while (requests.size() < count) {
      v1::GenerateRequest request;
      for (uint64_t left = 1 + rng.Below(40); left > 0; --left)
        request.mutable_token_ids()->add_ids(static_cast<uint32_t>(rng.Below(kPoison)));
      request.set_max_new_tokens(120);
      request.set_ignore_eos(true);
      const auto alone = TokensAlone(kLlama, {request});
      if (std::count(alone[0].begin(), alone[0].end(), kPoison) > 0) continue;
      requests.push_back(request);
      tokens.push_back(alone[0]);
    }
  }
};

v1::GenerateRequest PoisonedRequest(int length) {
  v1::GenerateRequest request;
  for (int i = 0; i < length; ++i) request.mutable_token_ids()->add_ids(i == length / 2 ? kPoison : 5);
  request.set_max_new_tokens(20);
  return request;
}

TEST(QueryOfDeath, EndsWithInternalAndAffectsNoOtherRequest) {
  const Harmless harmless(8);
  Cluster cluster(CpuWorkers(3, PoisonedModel()));
  ASSERT_TRUE(cluster.ok());
  const uint64_t epoch = cluster.State().epoch();
  TokenClients clients(cluster, harmless.requests);
  clients.AwaitTokens(20);
  constexpr int kQueries = 6;
  for (int i = 0; i < kQueries; ++i) {
    // One is longer than a step: it fails in a later chunk of its prompt.
    const GenerateResult result =
        Generate(cluster.inference(), PoisonedRequest(i == 0 ? 100 : 1 + 7 * i), kAttackPatience);
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INTERNAL) << result.status.error_message();
    EXPECT_THAT(result.status.error_message(), HasSubstr("logits are not finite"));
    EXPECT_EQ(result.tokens.size(), 0u);
  }
  clients.ExpectTokens(harmless.tokens);
  for (Process& worker : cluster.workers())
    EXPECT_EQ(worker.Wait(absl::ZeroDuration()), std::nullopt) << worker.Stderr();
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.epoch(), epoch);
  EXPECT_EQ(state.requests().failed(), static_cast<uint64_t>(kQueries));
  EXPECT_EQ(state.requests().replayed(), 0u);
  // Their data in the KV cache does not affect later requests.
  TokenClients later(cluster, harmless.requests);
  later.ExpectTokens(harmless.tokens);
  cluster.StopCleanly();
}

// The workers that run a request die, one after the other: whatever the cause, the fourth worker is not
// affected.
TEST(QueryOfDeath, ThatKillsItsWorkersIsEndedAfterTheThird) {
  ClusterOptions options = {.worker_processes = 0, .router_flags = {"--workers=1", "--restart_settle=0s"}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  constexpr uint32_t kDeadly = 66, kHealthy = 7;
  GenerateResult deadly;
  std::atomic<bool> ended = false;
  std::thread client([&] {
    deadly = Generate(cluster.inference(), SyntheticRequest(kDeadly, 50), kAttackPatience);
    ended = true;
  });
  // Prompt lengths of the worker's assignments, until one of the awaited lengths has arrived.
  const auto assigned = [](ScriptedWorker& worker, const std::set<uint32_t>& awaited) {
    std::multiset<uint32_t> lengths;
    v1::RouterMessage message;
    while (worker.ReadUntil(v1::RouterMessage::kPlan, message)) {
      bool come = false;
      for (const v1::Assignment& assignment : message.plan().assignments()) {
        lengths.insert(assignment.prompt_length());
        come = come || awaited.count(assignment.prompt_length()) > 0;
      }
      if (come) break;
    }
    return lengths;
  };
  for (int death = 1; death <= 3; ++death) {
    ScriptedWorker worker(cluster.address(), absl::StrCat("w", death));
    ASSERT_TRUE(worker.Join());
    EXPECT_THAT(assigned(worker, {kDeadly}), Contains(kDeadly));
  }
  std::thread healthy([&] { Generate(cluster.inference(), SyntheticRequest(kHealthy, 1), kAttackPatience); });
  ASSERT_TRUE(cluster.WaitFor("the healthy request",
                              [](const v1::ClusterState& s) { return s.requests().accepted() == 2; }));
  {
    ScriptedWorker worker(cluster.address(), "w4");
    ASSERT_TRUE(worker.Join());
    EXPECT_THAT(assigned(worker, {kDeadly, kHealthy}), Not(Contains(kDeadly)));
    EXPECT_TRUE(Eventually([&] { return ended.load(); })) << "its client is told";
  }
  // Open requests are cancelled with the router.
  cluster.KillRouter();
  client.join();
  healthy.join();
  EXPECT_EQ(deadly.status.error_code(), grpc::StatusCode::INTERNAL) << deadly.status.error_message();
}

// --- two models in one group ---

TEST(TwoModels, NeverServeInOneGroup) {
  ClusterOptions options = CpuWorkers(0, kLlama);
  options.router_flags = {"--workers=2"};
  options.more_flags = {{}, {absl::StrCat("--model=", kQwen3)}, {}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  cluster.StartWorker();
  cluster.StartWorker();
  ASSERT_TRUE(Eventually([&] { return CountOf(cluster.router().Stderr(), " attached ") == 2; }))
      << cluster.router().Stderr();
  cluster.StartWorker();
  ASSERT_TRUE(cluster.WaitFor("a group of two", [](const v1::ClusterState& s) { return Serving(s) >= 2; }));
  // The worker with another model may serve alone, but not in a group with the others.
  const std::string odd = cluster.workers()[1].Stderr();
  EXPECT_THAT(odd, Not(AnyOf(HasSubstr("rank 0 of 2"), HasSubstr("rank 1 of 2")))) << odd;
  v1::GenerateRequest request;
  for (uint32_t id = 10; id < 30; ++id) request.mutable_token_ids()->add_ids(id);
  request.set_max_new_tokens(20);
  request.set_ignore_eos(true);
  std::vector<std::thread> threads;
  std::vector<GenerateResult> results(8);
  for (GenerateResult& result : results)
    threads.emplace_back([&] { result = Generate(cluster.inference(), request, kAttackPatience); });
  for (std::thread& thread : threads) thread.join();
  std::set<std::vector<uint32_t>> answers;
  for (const GenerateResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    answers.insert(result.tokens);
  }
  EXPECT_EQ(answers.size(), 1u) << "one prompt, greedy, has several answers";
}

// --- unauthenticated peers in the barrier ---

// The intruder has all that can be guessed or observed: the port, the epoch, the rank and the group's size,
// but not the secret.
TEST(BarrierHijack, AConnectionWithoutTheSecretBecomesNoRank) {
  ClusterOptions options = {
      .worker_processes = 0,
      .router_flags = {"--workers=2", absl::StrCat("--step_timeout=", 30 * kSlowdown, "s")}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  cluster.StartWorker();
  ASSERT_TRUE(Eventually([&] { return CountOf(cluster.router().Stderr(), " attached ") == 1; }))
      << cluster.router().Stderr();
  // The rank that the intruder impersonates: it has received the epoch, and has not connected to the barrier
  // yet.
  ScriptedWorker late(cluster.address(), "late");
  late.SayHello();
  v1::RouterMessage message;
  ASSERT_TRUE(late.ReadUntil(v1::RouterMessage::kEpoch, message));
  ASSERT_EQ(message.epoch().rank(), 1u);
  const std::vector<int> ports = ListeningPorts(cluster.workers()[0].pid());
  ASSERT_EQ(ports.size(), 1u) << "a worker without --http_listen listens for its barrier alone";
  auto intruder = worker::StarEndpoint::Create({.host = "127.0.0.1"});
  ASSERT_TRUE(intruder.ok()) << intruder.status();
  const auto barrier = (*intruder)->Form(
      {message.epoch().epoch(), 1, 2, absl::StrCat("127.0.0.1:", ports[0], "/", std::string(64, '0'))},
      5 * kSlowdown * absl::Seconds(1), {});
  EXPECT_FALSE(barrier.ok()) << "the intruder is rank 1 of the barrier";
  EXPECT_THAT(cluster.workers()[0].Stderr(), Not(HasSubstr("rank 0 of 2")));
}

// --- the first worker after a restart ---

TEST(FirstWorker, WithAnotherModelAfterARestartEndsNoRequests) {
  ClusterOptions options = {.worker_processes = 2,
                            .worker_flags = {absl::StrCat("--c=", 0.008 * kSlowdown), "--tl=0", "--slots=8"}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  constexpr uint32_t kTokens = 300;
  constexpr int kRequests = 4;
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    v1::GenerateRequest& request =
        requests.emplace_back(SyntheticRequest(10 + static_cast<uint32_t>(i), kTokens));
    request.set_request_id(absl::StrCat("r", i));
    request.set_resumable(true);
    grpc::ClientContext context;
    const auto reader = cluster.inference().Generate(&context, request);
    v1::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response));
    context.TryCancel();
  }
  cluster.KillRouter();
  for (Process& worker : cluster.workers()) worker.Signal(SIGSTOP);
  cluster.StartRouterAgain();
  // A local pool, because this process's existing connections to the killed router reconnect with a backoff.
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  ScriptedWorker wrong(cluster.address(), "wrong", own);
  wrong.hello().set_barrier("star_tls");
  wrong.SayHello();
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(cluster.router().Stderr(), "worker wrong "); }))
      << cluster.router().Stderr();
  ScriptedWorker other(cluster.address(), "other", own);
  other.hello().set_model(std::string(64, 'a'));
  other.SayHello();
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(cluster.router().Stderr(), "worker other "); }))
      << cluster.router().Stderr();
  for (Process& worker : cluster.workers()) worker.Signal(SIGCONT);
  const auto ended = [&] {
    return std::any_of(cluster.workers().begin(), cluster.workers().end(),
                       [](Process& worker) { return worker.Wait(absl::ZeroDuration()).has_value(); });
  };
  ASSERT_TRUE(Eventually([&] { return ended() || Serving(cluster.State()) == 2; }));
  for (Process& worker : cluster.workers())
    ASSERT_EQ(worker.Wait(absl::ZeroDuration()), std::nullopt) << worker.Stderr();
  for (v1::GenerateRequest& request : requests) {
    request.set_resume_from_index(0);
    const GenerateResult result = Generate(cluster.inference(), request, kAttackPatience);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.tokens.size(), kTokens);
    EXPECT_TRUE(result.contiguous);
  }
  EXPECT_EQ(cluster.State().requests().recovered(), static_cast<uint64_t>(kRequests));
}

TEST(FirstWorker, RetriesWhenTheRouterRefusesIt) {
  ClusterOptions options = {.worker_processes = 0, .router_flags = {"--workers=1", "--models=00000000"}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  cluster.StartWorker();
  Process& worker = cluster.workers()[0];
  EXPECT_TRUE(Eventually([&] { return CountOf(worker.Stderr(), "refuses this worker") >= 2; }))
      << worker.Stderr();
  EXPECT_THAT(worker.Stderr(), HasSubstr("this router serves the models 00000000 (--models), not "));
  EXPECT_EQ(worker.Wait(absl::ZeroDuration()), std::nullopt);
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(kAttackPatience), 0) << worker.Stderr();
}

}  // namespace
}  // namespace bfio::testing
