// Computed tokens through the router: they are those of the engine alone, whatever happens to the group.
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/rng.h"
#include "tests/testing/bad_input.h"
#include "tests/testing/cluster.h"
#include "tests/testing/engine_alone.h"
#include "tests/testing/resuming_client.h"
#include "tests/testing/token_clients.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kModel[] = "tests/golden/qwen3";

ClusterOptions Options(int workers, const std::string& barrier = "star") {
  return {.worker_processes = workers,
          .router_flags = {absl::StrCat("--step_timeout=", 5 * kSlowdown, "s")},
          .worker_flags = {"--engine=cpu", absl::StrCat("--model=", kModel), "--slots=4", "--kv_tokens=4096",
                           "--token_budget=48", "--drain_timeout=5s", absl::StrCat("--barrier=", barrier)}};
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
      for (uint32_t t = 0; t < length; ++t) {
        request.mutable_token_ids()->add_ids(static_cast<uint32_t>(rng.Below(256)));
      }
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

struct GroupCase {
  const char* name;
  int workers;
  const char* barrier;
};

class CpuEngineGroup : public ::testing::TestWithParam<GroupCase> {};

INSTANTIATE_TEST_SUITE_P(Barriers, CpuEngineGroup,
                         ::testing::Values(GroupCase{"Star2", 2, "star"}, GroupCase{"Star4", 4, "star"},
                                           GroupCase{"Tls3", 3, "star_tls"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(CpuEngineGroup, TokensThroughTheRouterAreThoseOfTheEngineAlone) {
  const auto requests = Requests(20, 40);
  const auto alone = TokensAlone(kModel, requests);
  Cluster cluster(Options(GetParam().workers, GetParam().barrier));
  ASSERT_TRUE(cluster.ok());
  TokenClients(cluster, requests).ExpectTokens(alone);
  cluster.StopCleanly();
}

TEST_P(CpuEngineGroup, AWorkerThatIsKilledMidwayChangesNoToken) {
  const auto requests = Requests(24, 300);
  const auto alone = TokensAlone(kModel, requests);
  Cluster cluster(Options(GetParam().workers, GetParam().barrier));
  ASSERT_TRUE(cluster.ok());
  std::atomic<bool> killed = false;
  TokenClients clients(cluster, requests, [&](int seen) {
    if (seen >= 100 && !killed.exchange(true)) cluster.workers()[0].Signal(SIGKILL);
  });
  ASSERT_TRUE(cluster.WaitFor("the router to notice",
                              [](const v1::ClusterState& state) { return state.requests().replayed() > 0; }));
  cluster.StartWorker();
  clients.ExpectTokens(alone);
  EXPECT_TRUE(killed);
}

TEST(CpuEngine, AWorkerWithAnotherBarrierThanTheGroupDoesNotJoin) {
  const auto requests = Requests(8, 60);
  const auto alone = TokensAlone(kModel, requests);
  Cluster cluster(Options(2));
  ASSERT_TRUE(cluster.ok());
  Process odd("bfio_worker",
              {absl::StrCat("--router=", cluster.address()), "--engine=cpu", absl::StrCat("--model=", kModel),
               "--slots=4", "--kv_tokens=4096", "--barrier=star_tls"});
  Eventually([&] { return CountOf(odd.Stderr(), "notice from the router: ") > 0; });
  EXPECT_THAT(odd.Stderr(), HasSubstr("barrier star_tls) is assigned to group"));
  TokenClients(cluster, requests).ExpectTokens(alone);
  EXPECT_THAT(odd.Stderr(), Not(HasSubstr(": rank "))) << "alone it serves no client";
  odd.Signal(SIGTERM);
  EXPECT_EQ(odd.Wait(kSlowdown * absl::Seconds(60)), 0) << odd.Stderr();
  cluster.StopCleanly();
}

TEST(CpuEngine, ARouterThatIsKilledMidwayChangesNoToken) {
  auto requests = Requests(24, 300);
  const auto alone = TokensAlone(kModel, requests);
  Cluster cluster(Options(2));
  ASSERT_TRUE(cluster.ok());
  std::vector<std::unique_ptr<ResumingClient>> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].set_request_id(absl::StrCat("r", i));
    clients.push_back(std::make_unique<ResumingClient>(cluster.address(), requests[i]));
  }
  while (clients[0]->tokens_seen() == 0) absl::SleepFor(absl::Milliseconds(1));
  cluster.KillRouter();
  cluster.StartRouterAgain();
  ASSERT_TRUE(cluster.WaitFor("the requests to be back",
                              [](const v1::ClusterState& s) { return s.requests().resumed() > 0; }));
  // Now also the worker, so that the prompts must be sent again.
  cluster.workers()[0].Signal(SIGKILL);
  for (size_t i = 0; i < clients.size(); ++i) {
    const GenerateResult& result = clients[i]->Join();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_TRUE(result.contiguous);
    EXPECT_EQ(result.tokens, alone[i]) << "request " << i;
  }
  const v1::RequestTotals totals = cluster.State().requests();
  EXPECT_EQ(totals.tokens_lost() + totals.tokens_duplicated(), 0u);
}

TEST(CpuEngine, LockstepWithManyRanksPerProcessGivesTheSameTokens) {
  const auto requests = Requests(10, 20);
  const auto alone = TokensAlone(kModel, requests);
  ClusterOptions options = Options(1);
  options.ranks_per_process = 2;
  options.router_flags.push_back("--plan_mode=lockstep");
  options.worker_flags.push_back("--cpu_threads=2");
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  TokenClients(cluster, requests).ExpectTokens(alone);
  cluster.StopCleanly();
}

TEST(CpuEngine, ErrorsInModelsAndFlagsAreReportedInOneLine) {
  ExpectOneLine("bfio_worker", {"--engine=cpu"}, 2, "--engine=cpu requires --model=DIR");
  ExpectOneLine("bfio_worker", {"--engine=cpu", "--model=/nonexistent"}, 2, "/nonexistent");
  for (const auto& [flag, error] : {std::pair("--cpu_threads=0", "--cpu_threads=0: must be within 1..256"),
                                    {"--token_budget=-1", "--token_budget=-1: must be within 0.."},
                                    {"--scheduler=lifo", "unknown scheduler 'lifo'"},
                                    {"--scheduler=orca:lifo", "--scheduler=orca:lifo: unknown order 'lifo'"},
                                    {"--token_budget=2000000000", "(--token_budget) must be in 1.."}})
    ExpectOneLine("bfio_worker", {"--engine=cpu", absl::StrCat("--model=", kModel), flag}, 2, error);
}

}  // namespace
}  // namespace bfio::testing
