// The group changes while requests run: deaths, late joins, drains. Streams continue, no token is lost or
// repeated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/token_clients.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ClusterOptions Options(int workers) {
  ClusterOptions options = {.worker_processes = workers};
  // Workers are lost by killing them, which is noticed at once; a long timeout, so that a machine that pauses
  // for a while loses no worker.
  options.router_flags = {absl::StrCat("--step_timeout=", 10 * kSlowdown, "s")};
  // Slow enough for requests to be under way even when the machine is busy.
  options.worker_flags = {absl::StrCat("--c=", 0.008 * kSlowdown), "--tl=0", "--slots=8"};
  return options;
}

TEST(Membership, AKilledWorkersRequestsAreReplayedWithTheSameTokens) {
  Cluster cluster(Options(3));
  ASSERT_TRUE(cluster.ok());
  ClientThreads undisturbed(cluster, 12, 300);
  const std::vector<GenerateResult> reference = undisturbed.Join();
  ExpectWhole(reference, 300);

  ClientThreads disturbed(cluster, 12, 300);
  ASSERT_TRUE(cluster.WaitFor("all requests to run", [](const v1::ClusterState& s) {
    uint32_t active = 0;
    for (const v1::WorkerState& worker : s.workers()) active += worker.active_requests();
    return active == 12;
  }));
  cluster.workers()[1].Signal(SIGKILL);
  const std::vector<GenerateResult>& results = disturbed.Join();
  ExpectWhole(results, 300);
  for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].tokens, reference[i].tokens);
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(Serving(state), 2u);
  EXPECT_GT(state.requests().replayed(), 0u);
  EXPECT_EQ(state.requests().failed(), 0u);
  EXPECT_EQ(state.requests().completed(), 24u);
}

TEST(Membership, ALateWorkerJoinsAndTakesRequests) {
  Cluster cluster(Options(1));
  ASSERT_TRUE(cluster.ok());
  ClientThreads clients(cluster, 16, 400);  // twice the one worker's slots
  cluster.StartWorker();
  ASSERT_TRUE(cluster.WaitFor("the second worker to run requests", [](const v1::ClusterState& s) {
    return s.workers_size() == 2 && s.workers(1).phase() == v1::WORKER_PHASE_SERVING &&
           s.workers(1).active_requests() > 0;
  }));
  ExpectWhole(clients.Join(), 400);
  EXPECT_EQ(cluster.State().requests().replayed(), 0u) << "a join disturbs no request";
  cluster.StopCleanly();
}

TEST(Membership, ADrainedWorkerFinishesItsRequestsAndLeaves) {
  Cluster cluster(Options(2));
  ASSERT_TRUE(cluster.ok());
  ClientThreads clients(cluster, 8, 400);
  ASSERT_TRUE(cluster.WaitFor("requests on both workers", [](const v1::ClusterState& s) {
    return s.workers_size() == 2 && s.workers(0).active_requests() > 0 && s.workers(1).active_requests() > 0;
  }));
  v1::DrainWorkerRequest request;
  v1::DrainWorkerResponse response;
  request.set_worker_id(cluster.State().workers(0).worker_id());
  grpc::ClientContext context;
  ASSERT_TRUE(cluster.admin().DrainWorker(&context, request, &response).ok());
  ExpectWhole(clients.Join(), 400);
  ASSERT_TRUE(cluster.WaitFor("the drained worker to leave", [](const v1::ClusterState& s) {
    return s.workers_size() == 1 && Serving(s) == 1;
  }));
  EXPECT_EQ(cluster.State().requests().replayed(), 0u);
  ExpectWhole({Generate(cluster.inference(), SyntheticRequest(10, 5))}, 5);
  grpc::ClientContext again;
  EXPECT_EQ(cluster.admin().DrainWorker(&again, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(Membership, ATerminatedWorkerDrainsByItself) {
  Cluster cluster(Options(2));
  ASSERT_TRUE(cluster.ok());
  ClientThreads clients(cluster, 8, 400);
  ASSERT_TRUE(cluster.WaitFor("requests on both workers", [](const v1::ClusterState& s) {
    return s.workers_size() == 2 && s.workers(0).active_requests() > 0 && s.workers(1).active_requests() > 0;
  }));
  cluster.workers()[0].Signal(SIGTERM);
  ExpectWhole(clients.Join(), 400);
  EXPECT_EQ(cluster.workers()[0].Wait(kSlowdown * absl::Seconds(30)), 0) << cluster.workers()[0].Stderr();
  EXPECT_EQ(cluster.State().requests().replayed(), 0u);
}

// The group lacks a worker, so it has no epoch.
TEST(Membership, AWorkerThatHasNotServedYetLeavesAtOnce) {
  ClusterOptions options = Options(0);
  options.router_flags.push_back("--workers=2");
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  cluster.StartWorker();
  ASSERT_TRUE(cluster.WaitFor("the worker to attach",
                              [](const v1::ClusterState& s) { return s.workers_size() == 1; }));
  Process& worker = cluster.workers()[0];
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(kSlowdown * absl::Seconds(60)), 0) << worker.Stderr();
  // It would also end after its --drain_timeout.
  EXPECT_THAT(worker.Stderr(), HasSubstr("leaving: waiting up to"));
  EXPECT_THAT(worker.Stderr(), Not(HasSubstr("not drained within")));
}

TEST(Membership, RequestsWaitForTheFirstWorker) {
  ClusterOptions options = Options(0);
  options.router_flags.push_back("--workers=1");
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  ClientThreads clients(cluster, 4, 20);
  ASSERT_TRUE(cluster.WaitFor("the requests to wait",
                              [](const v1::ClusterState& s) { return s.waiting_requests() == 4; }));
  cluster.StartWorker();
  ExpectWhole(clients.Join(), 20);
}

TEST(Membership, WorkersSurviveTheirRouter) {
  Cluster cluster(Options(2));
  ASSERT_TRUE(cluster.ok());
  // The same ports again, as a supervisor would restart it.
  cluster.router().Signal(SIGTERM);
  ASSERT_EQ(cluster.router().Wait(kSlowdown * absl::Seconds(30)), 0) << cluster.router().Stderr();
  Process second("bfio_router", {absl::StrCat("--listen=", cluster.address()),
                                 absl::StrCat("--admin_listen=", cluster.admin_address()), "--workers=2"});
  ASSERT_TRUE(
      cluster.WaitFor("the workers to come back", [](const v1::ClusterState& s) { return Serving(s) == 2; }));
  ExpectWhole({Generate(cluster.inference(), SyntheticRequest(10, 5))}, 5);
}

}  // namespace
}  // namespace bfio::testing
