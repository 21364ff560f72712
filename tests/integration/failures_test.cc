// Killed routers and workers, stopped workers, broken streams: no token is lost or repeated, and all are
// those of a run without faults.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/rng.h"
#include "nlohmann/json.hpp"
#include "tests/testing/cluster.h"
#include "tests/testing/engine_alone.h"
#include "tests/testing/token_clients.h"

namespace bfio::testing {
namespace {

// Slow enough for requests to be under way even when the machine is busy. Unless a step timeout is given, it
// is long, so that a machine that pauses for a while loses no worker: a worker that is killed is noticed at
// once.
ClusterOptions Options(int workers, std::vector<std::string> router_flags = {}) {
  router_flags.insert(router_flags.begin(), absl::StrCat("--step_timeout=", 10 * kSlowdown, "s"));
  return {.worker_processes = workers,
          .router_flags = std::move(router_flags),
          .worker_flags = {absl::StrCat("--c=", 0.008 * kSlowdown), "--tl=0", "--slots=8"}};
}

// accepted = completed + cancelled + aborted + failed, and every token is accounted for.
void ExpectTally(const v1::RequestTotals& totals) {
  EXPECT_EQ(totals.tokens_lost(), 0u);
  EXPECT_EQ(totals.tokens_duplicated(), 0u);
  EXPECT_EQ(totals.accepted(), totals.completed() + totals.cancelled() + totals.aborted() + totals.failed());
}

TEST(Failures, RoutersWorkersAndStreamsMayBreakOneAfterTheOther) {
  constexpr uint32_t kTokens = 700;
  // Later routers take over only what this key has signed.
  const std::string keys = absl::StrCat(TestDirectory(), "/resume_keys");
  std::ofstream(keys) << std::string(64, 'k');
  Cluster cluster(Options(3, {"--resume_key_file=" + keys}));  // 24 slots
  ASSERT_TRUE(cluster.ok());
  TokenClients clients(cluster.address(), ResumableRequests(30, kTokens));
  ASSERT_TRUE(cluster.WaitFor("a pool", [](const v1::ClusterState& s) {
    return s.waiting_requests() == 6 && Running(s) == 24 && s.steps().generated_tokens() > 24 * 10;
  }));
  cluster.KillRouter();
  absl::SleepFor(absl::Milliseconds(100));  // the workers continue meanwhile
  cluster.StartRouterAgain();
  // Those that ran are recovered, those that waited are started again.
  ASSERT_TRUE(cluster.WaitFor("the requests to be back", [](const v1::ClusterState& s) {
    return s.requests().recovered() == 24 && s.requests().resumed() >= 24 && s.requests().restarted() == 6;
  }));
  EXPECT_EQ(cluster.State().steps().drift_tokens(), 0) << "the accounts began where the workers were";
  EXPECT_EQ(cluster.State().requests().replayed(), 0u);

  cluster.workers()[1].Signal(SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("the lost worker's requests to be replayed", [](const v1::ClusterState& s) {
    return s.requests().replayed() > 0 && Serving(s) == 2;
  }));
  const uint64_t resumed = cluster.State().requests().resumed();
  clients.Break();
  ASSERT_TRUE(cluster.WaitFor("the broken streams to be resumed", [=](const v1::ClusterState& s) {
    return s.requests().resumed() == resumed + 30;
  }));
  for (int kill = 0; kill < 2; ++kill) {
    cluster.KillRouter();
    cluster.StartRouterAgain();
    absl::SleepFor(kSlowdown * absl::Milliseconds(kill == 0 ? 150 : 0));
  }
  ExpectUndisturbed(clients, kTokens);
  ExpectTally(cluster.State().requests());
}

// The load generator resumes, too.
TEST(Failures, LockstepWorkersStepOnWithoutTheirRouter) {
  Cluster cluster(Options(2, {"--plan_mode=lockstep"}));
  ASSERT_TRUE(cluster.ok());
  const std::string json = absl::StrCat(TestDirectory(), "/resume.json");
  Process generator("bfio_loadgen",
                    {absl::StrCat("--target=", cluster.address()), "--resume", "--concurrency=24",
                     "--requests=60", "--profile=code", absl::StrCat("--json=", json)});
  ASSERT_TRUE(cluster.WaitFor("requests under way", [](const v1::ClusterState& s) {
    return s.requests().completed() >= 5 && s.waiting_requests() > 0;
  }));
  cluster.KillRouter();
  cluster.StartRouterAgain();
  EXPECT_EQ(generator.Wait(kSlowdown * absl::Seconds(120)), 0) << generator.Stdout() << generator.Stderr();
  const auto report = nlohmann::json::parse(std::ifstream(json));
  EXPECT_EQ(report["completed"], 60);
  EXPECT_GT(report["resumed"], 0);
  EXPECT_EQ(report["token_mismatches"], 0);
  EXPECT_EQ(report["stream_breaches"], 0);
  EXPECT_GT(cluster.State().requests().recovered(), 0u);
  ExpectTally(cluster.State().requests());
}

// The rank is stopped in the middle of a step and continued in a later epoch of the others, with requests of
// its own whose tokens others now generate. Whom a group removes is tested in tests/unit/router/group.
TEST(Failures, ReportsOfAResumedRankAreIgnored) {
  Cluster cluster(Options(3, {absl::StrCat("--step_timeout=", kSlowdown, "s")}));
  ASSERT_TRUE(cluster.ok());
  TokenClients undisturbed(cluster, SeededRequests(18, 200));
  const std::vector<GenerateResult> reference = undisturbed.Join();
  for (const size_t victim : {1, 0}) {  // 0 is the hub of the barrier
    TokenClients clients(cluster, SeededRequests(18, 200));
    ASSERT_TRUE(cluster.WaitFor("requests everywhere", [](const v1::ClusterState& s) {
      return s.workers_size() == 3 &&
             std::all_of(s.workers().begin(), s.workers().end(),
                         [](const auto& worker) { return worker.active_requests() > 0; });
    }));
    cluster.workers()[victim].Signal(SIGSTOP);
    EXPECT_TRUE(cluster.WaitFor("the others to go on", [](const v1::ClusterState& s) {
      return Serving(s) == 2 && s.requests().replayed() > 0;
    }));
    cluster.workers()[victim].Signal(SIGCONT);
    const std::vector<GenerateResult>& results = clients.Join();
    ExpectWhole(results, 200);
    for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].tokens, reference[i].tokens);
    EXPECT_TRUE(
        cluster.WaitFor("it to come back", [](const v1::ClusterState& s) { return Serving(s) == 3; }));
  }
  EXPECT_EQ(cluster.State().requests().failed(), 0u);
  ExpectTally(cluster.State().requests());
  cluster.StopCleanly();
}

// --- computed tokens: those of the engine alone, whatever happens to the group ---

constexpr char kModel[] = "tests/golden/qwen3";

ClusterOptions CpuOptions(int workers, const std::string& barrier) {
  ClusterOptions options = Options(workers, {absl::StrCat("--step_timeout=", 5 * kSlowdown, "s")});
  options.worker_flags = {"--engine=cpu",      absl::StrCat("--model=", kModel),
                          "--slots=4",         "--kv_tokens=4096",
                          "--token_budget=48", absl::StrCat("--barrier=", barrier)};
  return options;
}

// Prompts of all lengths, greedy and sampled, every fifth synthetic.
std::vector<v1::GenerateRequest> Requests(int count, uint32_t output) {
  Rng rng(11);
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < count; ++i) {
    v1::GenerateRequest& request = requests.emplace_back();
    const auto length = static_cast<uint32_t>(1 + rng.Below(i % 3 == 0 ? 200 : 20));
    if (i % 5 == 4) {
      request.set_prompt_length(length);
    } else {
      for (uint32_t t = 0; t < length; ++t)
        request.mutable_token_ids()->add_ids(static_cast<uint32_t>(rng.Below(256)));
    }
    request.set_max_new_tokens(output);
    request.set_ignore_eos(i % 2 == 0);
    // Without a seed the router chooses one, from which a synthetic prompt is generated.
    request.mutable_sampling()->set_seed(rng.Next());
    if (i % 4 < 2) continue;
    request.mutable_sampling()->set_temperature(0.75);
    request.mutable_sampling()->set_top_p(0.9375);
    request.mutable_sampling()->set_top_k(40);
  }
  return requests;
}

TEST(Failures, WorkersAndRoutersThatAreKilledMidwayChangeNoTokenOfAModel) {
  auto requests = Requests(24, 300);
  const auto alone = TokensAlone(kModel, requests);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].set_request_id(absl::StrCat("r", i));
  for (const auto& [workers, barrier] : {std::pair(4, "star"), {3, "star_tls"}}) {
    SCOPED_TRACE(barrier);
    Cluster cluster(CpuOptions(workers, barrier));
    ASSERT_TRUE(cluster.ok());
    TokenClients clients(cluster.address(), requests);
    clients.AwaitTokens(100);
    cluster.workers()[0].Signal(SIGKILL);
    ASSERT_TRUE(cluster.WaitFor("the router to notice",
                                [](const v1::ClusterState& s) { return s.requests().replayed() > 0; }));
    cluster.StartWorker();
    cluster.KillRouter();
    cluster.StartRouterAgain();
    ASSERT_TRUE(cluster.WaitFor("the requests to be back",
                                [](const v1::ClusterState& s) { return s.requests().resumed() > 0; }));
    // Now also another worker, so that the prompts must be sent again.
    cluster.workers()[1].Signal(SIGKILL);
    clients.ExpectTokens(alone);
    ExpectTally(cluster.State().requests());
  }
}

}  // namespace
}  // namespace bfio::testing
