// Several barrier groups in one router: one waiting pool, separate epochs, and one decision log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/testing/cluster.h"
#include "tests/testing/token_clients.h"

namespace bfio::testing {
namespace {

// Two groups of two ranks; the workers name their groups or leave that to the router.
ClusterOptions TwoGroups(bool named) {
  ClusterOptions options;
  options.worker_processes = 4;
  options.groups = 2;
  // Workers are lost by killing them, which the router notices at once; the step timeout is not needed.
  options.router_flags = {absl::StrCat("--step_timeout=", 10 * kSlowdown, "s"), "--restart_settle=1s"};
  options.worker_flags = {absl::StrCat("--c=", 0.008 * kSlowdown), "--tl=0", "--slots=8"};
  for (const char* group : {"left", "left", "right", "right"}) {
    if (named) options.more_flags.push_back({absl::StrCat("--group=", group)});
  }
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

// The steps of all groups as WatchSteps reports them, until the router or the test ends the stream.
class StepWatch {
 public:
  explicit StepWatch(Cluster& cluster) : reader_(cluster.admin().WatchSteps(&context_, {})) {
    thread_ = std::thread([this] {
      v1::StepSummary summary;
      while (reader_->Read(&summary)) {
        dropped_ += summary.dropped();
        steps_[summary.group()].push_back({summary.epoch(), summary.step()});
      }
    });
  }
  ~StepWatch() { Stop(); }
  void Stop() {
    context_.TryCancel();
    if (thread_.joinable()) thread_.join();
  }
  // Steps of a group, as epoch and step. After Stop.
  const std::vector<std::pair<uint64_t, uint64_t>>& Of(uint32_t group) { return steps_[group]; }
  uint64_t dropped() const { return dropped_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::StepSummary>> reader_;
  std::map<uint32_t, std::vector<std::pair<uint64_t, uint64_t>>> steps_;
  uint64_t dropped_ = 0;
  std::thread thread_;
};

TEST(Groups, WorkersWithoutAGroupNameAreDistributed) {
  Cluster cluster(TwoGroups(/*named=*/false));
  ASSERT_TRUE(cluster.ok());
  const v1::ClusterState state = cluster.State();
  std::map<std::string, std::set<uint32_t>> ranks;
  for (const v1::WorkerState& worker : state.workers()) ranks[worker.group()].insert(worker.rank());
  EXPECT_EQ(ranks, (std::map<std::string, std::set<uint32_t>>{{"0", {0, 1}}, {"1", {0, 1}}}));
  ClientThreads clients(cluster, 16, 40);
  ASSERT_TRUE(cluster.WaitFor("both groups to work", [](const v1::ClusterState& s) {
    return ActiveIn(s, "0") > 0 && ActiveIn(s, "1") > 0;
  }));
  ExpectWhole(clients.Join(), 40);
  cluster.StopCleanly();
}

TEST(Groups, AGroupThatDiesDoesNotDelayTheOther) {
  Cluster cluster(TwoGroups(/*named=*/true));
  ASSERT_TRUE(cluster.ok());
  const v1::ClusterState before = cluster.State();
  const uint32_t right = GroupOf(before, "right")->index();
  ClientThreads clients(cluster, 20, 300);
  ASSERT_TRUE(cluster.WaitFor("both groups to work", [](const v1::ClusterState& s) {
    return ActiveIn(s, "left") >= 4 && ActiveIn(s, "right") >= 4;
  }));
  StepWatch watch(cluster);
  cluster.workers()[0].Signal(SIGKILL);
  cluster.workers()[1].Signal(SIGKILL);
  // The requests of the lost group are placed in the other, before those that have not started.
  ExpectWhole(clients.Join(), 300);
  const v1::ClusterState state = cluster.State();
  EXPECT_GE(state.requests().replayed(), 4u);
  EXPECT_EQ(state.requests().tokens_lost(), 0u);
  EXPECT_EQ(GroupOf(state, "right")->epoch(), 1u) << "its membership did not change";
  watch.Stop();
  EXPECT_EQ(watch.dropped(), 0u);
  const auto& steps = watch.Of(right);
  ASSERT_GT(steps.size(), 100u);
  for (size_t i = 1; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].first, 1u);
    EXPECT_EQ(steps[i].second, steps[i - 1].second + 1) << "a step is missing";
  }
}

TEST(Groups, ANewNameFormsAGroupAndALostWorkerReturnsToItsOwn) {
  ClusterOptions options = TwoGroups(/*named=*/true);
  options.worker_processes = 4;
  options.more_flags.push_back({"--group=third"});
  options.more_flags.push_back({"--group=third"});
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  cluster.StartWorker();
  cluster.StartWorker();
  ASSERT_TRUE(cluster.WaitFor("a third group", [](const v1::ClusterState& s) {
    const v1::GroupState* third = GroupOf(s, "third");
    return third != nullptr && third->ready();
  }));
  const v1::ClusterState joined = cluster.State();
  EXPECT_EQ(GroupOf(joined, "left")->epoch(), 1u);
  cluster.workers()[4].Signal(SIGKILL);
  cluster.StartWorker(4);
  ASSERT_TRUE(cluster.WaitFor("the third group to be whole again", [](const v1::ClusterState& s) {
    uint32_t serving = 0;
    for (const v1::WorkerState& worker : s.workers())
      serving += worker.group() == "third" && worker.phase() == v1::WORKER_PHASE_SERVING;
    return serving == 2 && GroupOf(s, "third")->epoch() > 1;
  }));
  const v1::ClusterState whole = cluster.State();
  EXPECT_EQ(GroupOf(whole, "right")->epoch(), 1u);
}

TEST(Groups, ARestartedRouterFindsItsGroupsAgain) {
  ClusterOptions options = TwoGroups(/*named=*/false);
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  std::map<std::string, std::string> before, after;
  const v1::ClusterState first = cluster.State();
  for (const v1::WorkerState& worker : first.workers()) before[worker.worker_id()] = worker.group();
  cluster.KillRouter();
  cluster.StartRouterAgain();
  ASSERT_TRUE(cluster.WaitFor("both groups", [](const v1::ClusterState& s) {
    uint32_t serving = 0;
    for (const v1::WorkerState& worker : s.workers()) serving += worker.phase() == v1::WORKER_PHASE_SERVING;
    return serving == 4;
  }));
  const v1::ClusterState second = cluster.State();
  for (const v1::WorkerState& worker : second.workers()) after[worker.worker_id()] = worker.group();
  EXPECT_EQ(after, before);
}

TEST(Groups, TheDecisionLogOfTwoGroupsReplaysBitForBit) {
  const std::string log = TestDirectory() + "/groups.log";
  ClusterOptions options = TwoGroups(/*named=*/true);
  options.router_flags.push_back(absl::StrCat("--decision_log=", log));
  // A decision that the budget stops on a busy machine might not repeat.
  options.router_flags.push_back("--decide_budget_ms=0");
  {
    Cluster cluster(options);
    ASSERT_TRUE(cluster.ok());
    ClientThreads clients(cluster, 30, 60);
    ASSERT_TRUE(cluster.WaitFor("both groups to work", [](const v1::ClusterState& s) {
      return ActiveIn(s, "left") > 0 && ActiveIn(s, "right") > 0;
    }));
    cluster.workers()[0].Signal(SIGKILL);
    ExpectWhole(clients.Join(), 60);
    cluster.router().Signal(SIGTERM);
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
