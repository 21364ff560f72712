// A rank that was removed from its group can no longer act for it, neither in the barrier nor towards the
// router. Whom a group removes is tested in tests/unit/router/group/group_failure_test.cc.
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/scripted_worker.h"
#include "tests/testing/token_clients.h"
#include "worker/barrier/star/star_endpoint.h"

namespace bfio::testing {
namespace {

constexpr absl::Duration kDetection = absl::Seconds(kSlowdown);

ClusterOptions FencingOptions(int workers) {
  return {.worker_processes = workers,
          .router_flags = {absl::StrCat("--step_timeout=", absl::FormatDuration(kDetection))},
          .worker_flags = {absl::StrCat("--c=", 0.008 * kSlowdown), "--tl=0", "--slots=8"}};
}

// The rank is stopped in the middle of a step and continued in a later epoch of the others, with requests of
// its own whose tokens others now generate.
TEST(Fencing, ReportsOfAResumedRankAreIgnored) {
  Cluster cluster(FencingOptions(3));
  ASSERT_TRUE(cluster.ok());
  ClientThreads undisturbed(cluster, 18, 200);
  const std::vector<GenerateResult> reference = undisturbed.Join();
  for (int round = 0; round < 2; ++round) {
    // In the second round rank 0, the hub of the barrier.
    Process& victim = cluster.workers()[round == 0 ? 1 : 0];
    ClientThreads clients(cluster, 18, 200);
    ASSERT_TRUE(cluster.WaitFor("requests everywhere", [](const v1::ClusterState& s) {
      return s.workers_size() == 3 && s.workers(0).active_requests() > 0 &&
             s.workers(1).active_requests() > 0 && s.workers(2).active_requests() > 0;
    }));
    victim.Signal(SIGSTOP);
    EXPECT_TRUE(cluster.WaitFor("the others to go on", [](const v1::ClusterState& s) {
      return Serving(s) == 2 && s.requests().replayed() > 0;
    }));
    victim.Signal(SIGCONT);
    const std::vector<GenerateResult>& results = clients.Join();
    ExpectWhole(results, 200);
    for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].tokens, reference[i].tokens);
    EXPECT_TRUE(
        cluster.WaitFor("it to come back", [](const v1::ClusterState& s) { return Serving(s) == 3; }));
  }
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().failed(), 0u);
  EXPECT_EQ(state.requests().tokens_lost(), 0u);
  EXPECT_EQ(state.requests().tokens_duplicated(), 0u);
  cluster.StopCleanly();
}

// A rank of a past epoch is not admitted by rank 0, and does not delay ranks that join after it.
TEST(Fencing, TheBarrierRefusesRanksOfAnOldEpoch) {
  Cluster cluster(FencingOptions(2));
  ASSERT_TRUE(cluster.ok());
  // A third worker receives the address of the barrier, and sends nothing.
  v1::Epoch epoch;
  {
    ScriptedWorker outsider(cluster.address(), "outsider");
    outsider.SayHello();
    v1::RouterMessage message;
    ASSERT_TRUE(outsider.ReadUntil(v1::RouterMessage::kEpoch, message));
    epoch = message.epoch();
    EXPECT_EQ(outsider.End().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  ASSERT_TRUE(
      cluster.WaitFor("the others to go on", [](const v1::ClusterState& s) { return Serving(s) == 2; }));
  ASSERT_GT(cluster.State().epoch(), epoch.epoch());
  auto endpoint = worker::StarEndpoint::Create({.host = "127.0.0.1"});
  ASSERT_TRUE(endpoint.ok());
  const worker::GroupSpec stale = {epoch.epoch(), static_cast<int32_t>(epoch.rank()),
                                   static_cast<int32_t>(epoch.world_size()), epoch.communicator_id()};
  std::thread knocks([&] { EXPECT_FALSE((*endpoint)->Form(stale, 4 * kDetection, {}).ok()); });
  EXPECT_EQ(Generate(cluster.inference(), SyntheticRequest(10, 50)).tokens.size(), 50u);
  // The group re-forms during the attempt.
  cluster.StartWorker();
  EXPECT_TRUE(cluster.WaitFor("the newcomer", [](const v1::ClusterState& s) { return Serving(s) == 3; }));
  EXPECT_EQ(Generate(cluster.inference(), SyntheticRequest(10, 50)).tokens.size(), 50u);
  knocks.join();
}

}  // namespace
}  // namespace bfio::testing
