// Workers and groups come and go while requests run: late joins, drains, new groups, lost groups. Streams
// continue, no token is lost or repeated. tests/integration/failures_test.cc kills workers and routers.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/testing/cluster.h"
#include "tests/testing/token_clients.h"

namespace bfio::testing {
namespace {

// Workers leave by signals, which are noticed at once; a long timeout, so that a machine that pauses for a
// while loses none. Steps are slow enough for requests to be under way even when the machine is busy.
ClusterOptions Options(int workers, std::vector<std::string> router_flags) {
  router_flags.push_back(absl::StrCat("--step_timeout=", 10 * kSlowdown, "s"));
  return {.worker_processes = workers,
          .router_flags = std::move(router_flags),
          .worker_flags = {absl::StrCat("--c=", 0.008 * kSlowdown), "--tl=0", "--slots=8"}};
}

grpc::StatusCode Drain(Cluster& cluster, const std::string& worker_id) {
  v1::DrainWorkerRequest request;
  v1::DrainWorkerResponse response;
  request.set_worker_id(worker_id);
  grpc::ClientContext context;
  return cluster.admin().DrainWorker(&context, request, &response).error_code();
}

TEST(Membership, JoinsAndDrainsDisturbNoRequest) {
  Cluster cluster(Options(0, {"--workers=1"}));
  ASSERT_TRUE(cluster.ok());
  const auto both_work = [&] {
    return cluster.WaitFor("requests on both workers", [](const v1::ClusterState& s) {
      return s.workers_size() == 2 && s.workers(0).active_requests() > 0 &&
             s.workers(1).active_requests() > 0;
    });
  };
  {
    TokenClients clients(cluster, SeededRequests(16, 300));  // twice one worker's slots
    ASSERT_TRUE(cluster.WaitFor("the requests to wait for the first worker",
                                [](const v1::ClusterState& s) { return s.waiting_requests() == 16; }));
    cluster.StartWorker();
    cluster.StartWorker();
    ASSERT_TRUE(both_work());
    ExpectWhole(clients.Join(), 300);
  }
  {
    TokenClients clients(cluster, SeededRequests(8, 300));
    ASSERT_TRUE(both_work());
    const std::string worker_id = cluster.State().workers(0).worker_id();
    EXPECT_EQ(Drain(cluster, worker_id), grpc::StatusCode::OK);
    ExpectWhole(clients.Join(), 300);
    ASSERT_TRUE(cluster.WaitFor("the drained worker to leave", [](const v1::ClusterState& s) {
      return s.workers_size() == 1 && Serving(s) == 1;
    }));
    EXPECT_EQ(Drain(cluster, worker_id), grpc::StatusCode::NOT_FOUND);
  }
  cluster.StartWorker();
  ASSERT_TRUE(cluster.WaitFor("another worker", [](const v1::ClusterState& s) { return Serving(s) == 2; }));
  TokenClients clients(cluster, SeededRequests(8, 300));
  ASSERT_TRUE(both_work());
  cluster.workers()[2].Signal(SIGTERM);
  ExpectWhole(clients.Join(), 300);
  EXPECT_EQ(cluster.workers()[2].Wait(kSlowdown * absl::Seconds(30)), 0) << cluster.workers()[2].Stderr();
  EXPECT_EQ(cluster.State().requests().replayed(), 0u);
  EXPECT_EQ(cluster.State().requests().completed(), 32u);
}

// --- several groups in one router ---

ClusterOptions TwoGroups(std::vector<std::string> router_flags = {}) {
  router_flags.push_back("--restart_settle=1s");
  ClusterOptions options = Options(4, std::move(router_flags));
  options.groups = 2;
  return options;
}

const v1::GroupState* GroupOf(const v1::ClusterState& state, const std::string& name) {
  for (const v1::GroupState& group : state.groups()) {
    if (group.name() == name) return &group;
  }
  return nullptr;
}

uint32_t ActiveIn(const v1::ClusterState& state, const std::string& group) {
  uint32_t active = 0;
  for (const v1::WorkerState& worker : state.workers()) {
    if (worker.group() == group) active += worker.active_requests();
  }
  return active;
}

// The steps of a group, as epoch and step, that WatchSteps reports until the stream is cancelled.
std::vector<std::pair<uint64_t, uint64_t>> StepsOf(grpc::ClientReader<v1::StepSummary>& reader,
                                                   uint32_t group) {
  std::vector<std::pair<uint64_t, uint64_t>> steps;
  for (v1::StepSummary summary; reader.Read(&summary);) {
    EXPECT_EQ(summary.dropped(), 0u);
    if (summary.group() == group) steps.emplace_back(summary.epoch(), summary.step());
  }
  return steps;
}

TEST(Groups, LostAndNewGroupsDoNotDelayAnotherAndAllReplaysBitForBit) {
  // The programs inherit it; under nohup they would ignore the signal.
  signal(SIGHUP, SIG_DFL);
  const std::string log = TestDirectory() + "/groups.log";
  // A decision that the budget stops on a busy machine might not repeat.
  ClusterOptions options = TwoGroups({absl::StrCat("--decision_log=", log), "--decide_budget_ms=0"});
  for (const char* group : {"left", "left", "right", "right", "third", "third"})
    options.more_flags.push_back({absl::StrCat("--group=", group)});
  {
    Cluster cluster(options);
    ASSERT_TRUE(cluster.ok());
    TokenClients clients(cluster, SeededRequests(20, 300));
    ASSERT_TRUE(cluster.WaitFor("both groups to work", [](const v1::ClusterState& s) {
      return ActiveIn(s, "left") >= 4 && ActiveIn(s, "right") >= 4;
    }));
    const uint32_t right = GroupOf(cluster.State(), "right")->index();
    grpc::ClientContext context;
    const auto reader = cluster.admin().WatchSteps(&context, {});
    std::vector<std::pair<uint64_t, uint64_t>> steps;
    std::thread watch([&] { steps = StepsOf(*reader, right); });
    cluster.workers()[0].Signal(SIGKILL);
    cluster.workers()[1].Signal(SIGKILL);
    // The requests of the lost group are placed in the other, before those that have not started.
    ExpectWhole(clients.Join(), 300);
    context.TryCancel();
    watch.join();
    EXPECT_GT(steps.size(), 100u);
    for (size_t i = 1; i < steps.size(); ++i)
      EXPECT_EQ(steps[i], std::pair(uint64_t{1}, steps[i - 1].second + 1)) << "a step is missing";
    EXPECT_GE(cluster.State().requests().replayed(), 4u);
    EXPECT_EQ(cluster.State().requests().tokens_lost(), 0u);

    // A new name forms a group, and a lost worker returns to its own.
    const auto third_serves = [&](uint64_t epoch) {
      return cluster.WaitFor("the third group", [=](const v1::ClusterState& s) {
        int serving = 0;
        for (const v1::WorkerState& worker : s.workers())
          serving += worker.group() == "third" && worker.phase() == v1::WORKER_PHASE_SERVING;
        return serving == 2 && GroupOf(s, "third")->epoch() >= epoch;
      });
    };
    cluster.StartWorker();
    cluster.StartWorker();
    ASSERT_TRUE(third_serves(1));
    const uint64_t epoch = GroupOf(cluster.State(), "third")->epoch();
    cluster.workers()[4].Signal(SIGKILL);
    cluster.StartWorker(4);
    ASSERT_TRUE(third_serves(epoch + 1));
    EXPECT_EQ(GroupOf(cluster.State(), "right")->epoch(), 1u) << "its membership did not change";
    cluster.router().Signal(SIGHUP);
    EXPECT_EQ(cluster.router().Wait(kSlowdown * absl::Seconds(40)), 0);
  }
  const RunResult run = RunProgram("bfio_sim", {"replay", absl::StrCat("--log=", log), "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const nlohmann::json replay = nlohmann::json::parse(run.out);
  EXPECT_EQ(replay["ok"], true) << replay["first_difference"];
  EXPECT_EQ(replay["identical"], replay["decisions"]) << replay["first_difference"];
  EXPECT_EQ(replay["answers_identical"], replay["answers"]);
  EXPECT_GT(replay["decisions"], 50);
  EXPECT_GE(replay["epochs"], 3);
}

}  // namespace
}  // namespace bfio::testing
