// A model too large for any one server, served by chains of four servers with unequal memory: the tokens
// equal those of the whole model, whichever server is lost.
#include <gmock/gmock.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/testing/cluster.h"
#include "tests/testing/engine_alone.h"
#include "tests/testing/token_clients.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

// 12 blocks of 408 KiB, and 64 KiB of embedding and head; 144 KiB of KV per request and block.
const std::string& Model() {
  static const std::string* const directory = [] {
    auto* path = new std::string(absl::StrCat(TestDirectory(), "/model"));
    const RunResult made =
        RunProgram("bfio_make_checkpoint",
                   {absl::StrCat("--out=", *path), "--layers=12", "--hidden=64", "--intermediate=1024",
                    "--heads=4", "--kv_heads=2", "--vocab=256", "--max_positions=2048"});
    EXPECT_EQ(made.code, 0) << made.err;
    return path;
  }();
  return *directory;
}

// With memory for four requests the servers hold 4, 3, 3 and 2 blocks.
constexpr double kMemoryMb[] = {3.95, 3.0, 3.0, 2.05};

ClusterOptions FourServers() {
  ClusterOptions options;
  options.worker_processes = 4;
  options.ranks = 1;
  // Servers are not measured, so that the placement of blocks follows from memory alone.
  options.router_flags = {"--chains=servers=4,sequence_tokens=512,measure=false",
                          absl::StrCat("--step_timeout=", 5 * kSlowdown, "s")};
  options.worker_flags = {"--engine=cpu", absl::StrCat("--model=", Model()), "--token_budget=48",
                          "--drain_timeout=5s", "--pipeline_listen=127.0.0.1:0"};
  for (int i = 0; i < 4; ++i) {
    options.more_flags.push_back(
        {absl::StrCat("--memory_limit_mb=", kMemoryMb[i]), absl::StrCat("--worker_id=server", i)});
  }
  return options;
}

// Flags with which servers encrypt and authenticate their streams.
std::vector<std::string> Tls() {
  const std::string folder = absl::StrCat(TestDirectory(), "/certs");
  EXPECT_EQ(std::system(absl::StrCat("deploy/make_certs --out=", folder, " >", folder, ".log 2>&1").c_str()),
            0);
  return {absl::StrCat("--pipeline_tls=cert=", folder, "/pipeline.crt,key=", folder,
                       "/pipeline.key,ca=", folder, "/pipeline-ca.crt")};
}

std::vector<v1::GenerateRequest> Requests(int count, uint32_t output) {
  Rng rng(5);
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < count; ++i) {
    v1::GenerateRequest& request = requests.emplace_back();
    for (uint64_t left = 1 + rng.Below(i % 3 == 0 ? 150 : 20); left > 0; --left)
      request.mutable_token_ids()->add_ids(static_cast<uint32_t>(rng.Below(256)));
    request.set_max_new_tokens(output);
    request.set_ignore_eos(true);
    request.mutable_sampling()->set_seed(rng.Next());
    if (i % 2 == 0) request.mutable_sampling()->set_temperature(0.75);
    request.set_request_id(absl::StrCat("r", i));
  }
  return requests;
}

// The serving rank, which is the whole chain; null while no chain serves.
const v1::WorkerState* Serving(const v1::ClusterState& state) {
  for (const v1::WorkerState& worker : state.workers()) {
    if (worker.phase() == v1::WORKER_PHASE_SERVING) return &worker;
  }
  return nullptr;
}

bool ServesWith(const v1::ClusterState& state, uint32_t slots) {
  const v1::WorkerState* const worker = Serving(state);
  return worker != nullptr && worker->slots() == slots;
}

bool Logs(const Process& process, const std::string& text) {
  return Eventually([&] { return CountOf(process.Stderr(), text) > 0; });
}

TEST(Chain, FourServersServeAModelThatNoneOfThemHolds) {
  const auto requests = Requests(12, 30);
  const auto alone = TokensAlone(Model(), requests);
  const RunResult single = RunProgram(
      "bfio_worker", {"--engine=cpu", absl::StrCat("--model=", Model()), "--slots=1", "--kv_tokens=512",
                      "--max_sequence_tokens=512", absl::StrCat("--memory_limit_mb=", kMemoryMb[0])});
  EXPECT_NE(single.code, 0);
  EXPECT_THAT(single.err, HasSubstr("more than the memory limit of 3.9 MiB"));
  ClusterOptions options = FourServers();
  for (const std::string& flag : Tls()) options.worker_flags.push_back(flag);
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  EXPECT_THAT(cluster.router().Stderr(), HasSubstr("server0[0,4) server1[4,7) server2[7,10) server3[10,12)"));
  EXPECT_TRUE(ServesWith(cluster.State(), 4)) << cluster.State().ShortDebugString();
  TokenClients(cluster, requests).ExpectTokens(alone);
  EXPECT_EQ(cluster.State().requests().replayed(), 0u);
  cluster.StopCleanly();
}

TEST(Chain, LosingServersLosesNoTokenAndComposesAgain) {
  const auto requests = Requests(6, 200);
  const auto alone = TokensAlone(Model(), requests);
  Cluster cluster(FourServers());
  ASSERT_TRUE(cluster.ok());
  TokenClients clients(cluster, requests);
  // A server in the middle is lost: the remaining three hold the model with memory for one request.
  clients.AwaitTokens(100);
  cluster.workers()[1].Signal(SIGKILL);
  ASSERT_TRUE(
      cluster.WaitFor("a chain of the other three", [](const auto& state) { return ServesWith(state, 1); }));
  EXPECT_THAT(cluster.router().Stderr(), HasSubstr("server0[0,7) server2[7,12)"));
  // The head is lost: two servers do not hold the model; waiting requests continue when a third joins.
  clients.AwaitTokens(400);
  cluster.workers()[0].Signal(SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("no chain", [](const auto& state) { return Serving(state) == nullptr; }));
  ASSERT_TRUE(Logs(cluster.router(), "2 servers have memory for 8 of 12 blocks"));
  cluster.StartWorker(1);
  clients.ExpectTokens(alone);
  const v1::RequestTotals totals = cluster.State().requests();
  EXPECT_GT(totals.replayed(), 0u);
  EXPECT_EQ(totals.tokens_lost() + totals.tokens_duplicated(), 0u);
}

TEST(Chain, AChainOutlivesItsRouterAndTheNextTakesItOver) {
  auto requests = Requests(4, 250);
  const auto alone = TokensAlone(Model(), requests);
  Cluster cluster(FourServers());
  ASSERT_TRUE(cluster.ok());
  TokenClients clients(cluster.address(), requests);
  ASSERT_TRUE(clients.AwaitEach(1));
  cluster.KillRouter();
  cluster.StartRouterAgain();
  clients.ExpectTokens(alone);
  EXPECT_EQ(cluster.State().requests().replayed(), 0u);
  EXPECT_THAT(cluster.router().Stderr(), HasSubstr("recovered, 4 servers"));
}

// Two chains of two servers each, server0 and server1, server2 and server3, with memory for two requests per
// chain.
ClusterOptions TwoChains() {
  ClusterOptions options = FourServers();
  options.ranks = 2;
  options.router_flags = {"--chains=servers=4,slots=2,sequence_tokens=512,measure=false",
                          absl::StrCat("--step_timeout=", 60 * kSlowdown, "s")};
  for (auto& flags : options.more_flags) flags[0] = "--memory_limit_mb=4.2";
  return options;
}

int64_t Ranks(const v1::ClusterState& state, uint32_t requests) {
  return std::count_if(state.workers().begin(), state.workers().end(), [&](const v1::WorkerState& worker) {
    return worker.phase() == v1::WORKER_PHASE_SERVING &&
           worker.active_requests() + worker.inflight_requests() == requests;
  });
}

TEST(Chain, OneOfTwoChainsIsLostAndTheOtherContinues) {
  constexpr int kTokens = 60;
  const auto requests = Requests(4, kTokens);
  const auto alone = TokensAlone(Model(), requests);
  Cluster cluster(TwoChains());
  ASSERT_TRUE(cluster.ok());
  EXPECT_THAT(cluster.router().Stderr(), HasSubstr("server0[0,6) server1[6,12)"));
  EXPECT_THAT(cluster.router().Stderr(), HasSubstr("server2[0,6) server3[6,12)"));
  EXPECT_TRUE(cluster.State().uncoupled());
  EXPECT_EQ(cluster.State().policy().name(), "jffc");
  // While the last servers of both chains are stopped, the dispatcher places two requests on the fastest free
  // chain and the next two on the other.
  cluster.workers()[1].Signal(SIGSTOP);
  cluster.workers()[3].Signal(SIGSTOP);
  TokenClients clients(cluster, requests);
  ASSERT_TRUE(
      cluster.WaitFor("two requests on each", [](const auto& state) { return Ranks(state, 2) == 2; }));
  // The first chain's two requests finish: no step waits for the stopped chain.
  cluster.workers()[1].Signal(SIGCONT);
  clients.AwaitTokens(2 * kTokens);
  ASSERT_TRUE(cluster.WaitFor("one chain without work", [](const auto& state) {
    return Ranks(state, 0) == 1 && Ranks(state, 2) == 1;
  }));
  EXPECT_EQ(cluster.State().requests().replayed(), 0u);
  cluster.workers()[3].Signal(SIGKILL);
  clients.ExpectTokens(alone);
  const v1::RequestTotals totals = cluster.State().requests();
  EXPECT_EQ(totals.replayed(), 2u) << "those of the lost chain, and no others";
  EXPECT_EQ(totals.tokens_lost() + totals.tokens_duplicated(), 0u);
  // A replacement server completes the second chain again.
  cluster.StartWorker(3);
  ASSERT_TRUE(cluster.WaitFor("two chains", [](const auto& state) { return Ranks(state, 0) == 2; }));
}

// The same with memory for four requests per chain, and a barrier in which the chains meet in every step.
ClusterOptions ChainsWithABarrier(const std::string& policy) {
  ClusterOptions options = TwoChains();
  options.router_flags[0] = "--chains=servers=4,slots=4,sequence_tokens=512,measure=false";
  options.router_flags.insert(options.router_flags.end(),
                              {"--coupling=barrier", absl::StrCat("--policy=", policy)});
  for (auto& flags : options.more_flags) flags[0] = "--memory_limit_mb=6.2";
  return options;
}

// The mean imbalance, as a share of the mean load of a chain.
double ImbalanceOfTwoChains(const std::string& policy, const std::vector<v1::GenerateRequest>& requests,
                            const std::vector<std::vector<uint32_t>>& alone) {
  Cluster cluster(ChainsWithABarrier(policy));
  if (!cluster.ok()) return 0;
  const v1::ClusterState before = cluster.State();
  EXPECT_FALSE(before.uncoupled());
  EXPECT_EQ(before.policy().name(), policy);
  EXPECT_EQ(Ranks(before, 0), 2);
  // While the last servers of both chains are stopped, all requests arrive: the speed of clients must not
  // decide how many requests the policy can choose from.
  cluster.workers()[1].Signal(SIGSTOP);
  cluster.workers()[3].Signal(SIGSTOP);
  TokenClients clients(cluster, requests);
  EXPECT_TRUE(cluster.WaitFor("all requests", [&](const v1::ClusterState& now) {
    size_t known = now.waiting_requests();
    for (const v1::WorkerState& worker : now.workers())
      known += worker.active_requests() + worker.inflight_requests();
    return known == requests.size();
  }));
  cluster.workers()[1].Signal(SIGCONT);
  cluster.workers()[3].Signal(SIGCONT);
  clients.ExpectTokens(alone);
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().replayed(), 0u);
  EXPECT_EQ(state.steps().drift_tokens(), 0u) << "the router knows a chain's load as well as a worker's";
  cluster.StopCleanly();
  return state.steps().imbalance_tokens() / state.steps().mean_load_tokens();
}

TEST(Chain, ChainsThatShareABarrierAreBalancedByBfIo) {
  const auto requests = Requests(140, 12);
  const auto alone = TokensAlone(Model(), requests);
  const double fcfs = ImbalanceOfTwoChains("fcfs", requests, alone);
  const double bf_io = ImbalanceOfTwoChains("bf_io_auto", requests, alone);
  RecordProperty("imbalance_fcfs", absl::StrCat(fcfs));
  RecordProperty("imbalance_bf_io_auto", absl::StrCat(bf_io));
  EXPECT_LT(bf_io, 0.8 * fcfs) << fcfs;
}

TEST(Chain, ServersAreMeasuredAndThePlannerReadsThem) {
  const auto requests = Requests(3, 10);
  const auto alone = TokensAlone(Model(), requests);
  const std::string folder = absl::StrCat(TestDirectory(), "/measured");
  ClusterOptions options = FourServers();
  options.router_flags[0] = absl::StrCat("--chains=servers=4,sequence_tokens=512,job=16:10,plan=", folder);
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  TokenClients(cluster, requests).ExpectTokens(alone);
  const v1::ClusterState state = cluster.State();
  const v1::WorkerState* const worker = Serving(state);
  ASSERT_NE(worker, nullptr);
  EXPECT_GT(worker->service_s(), 0);
  const RunResult plan =
      RunProgram("bfio_plan", {absl::StrCat("--pool=", folder, "/pool.json"),
                               absl::StrCat("--model=", folder, "/model.json"), "--demand=0.001", "--json"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  for (const char* server : {"server0", "server1", "server2", "server3"})
    EXPECT_THAT(plan.out, HasSubstr(server));
}

}  // namespace
}  // namespace bfio::testing
