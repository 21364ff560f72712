// Calls of agents through real processes: the order in which they are served, and the load generator's report
// of them.
#include <gmock/gmock.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::ElementsAre;

// One slot, so that requests end in the order in which they are placed; a response takes a second.
constexpr uint32_t kAnswer = 50;

ClusterOptions OneSlot(const std::string& order, const std::string& policy) {
  return {.worker_processes = 1,
          .router_flags = {absl::StrCat("--agent_order=", order), absl::StrCat("--policy=", policy)},
          .worker_flags = {"--c=0.02", "--tl=0", "--slots=1", "--kv_tokens=4000"}};
}

v1::GenerateRequest CallOf(const std::string& parent, uint32_t output) {
  v1::GenerateRequest request = SyntheticRequest(10, output);
  request.set_parent_id(parent);
  return request;
}

// Occupies the only slot, adds `waiting` to the pool one after the other, frees the slot and returns their
// names in the order in which they end.
std::vector<std::string> OrderOf(Cluster& cluster,
                                 const std::vector<std::pair<std::string, v1::GenerateRequest>>& waiting) {
  RequestStream holder(cluster.inference(), SyntheticRequest(10, 3000));
  // Steps pass, so that later requests are younger.
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(holder.Read());
  std::mutex mutex;
  std::vector<std::string> ended;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < waiting.size(); ++i) {
    threads.emplace_back([&, i] {
      const GenerateResult result = Generate(cluster.inference(), waiting[i].second);
      EXPECT_TRUE(result.status.ok()) << result.status.error_message();
      const std::lock_guard<std::mutex> lock(mutex);
      ended.push_back(waiting[i].first);
    });
    cluster.WaitFor("another request in the pool",
                    [&](const v1::ClusterState& state) { return state.waiting_requests() == i + 1; });
  }
  holder.Cancel();
  holder.End();
  for (std::thread& thread : threads) thread.join();
  return ended;
}

std::vector<std::string> OrderUnder(const std::string& order, const std::string& policy,
                                    const std::string& tenant_of_other = "") {
  Cluster cluster(OneSlot(order, policy));
  if (!cluster.ok()) return {};
  EXPECT_TRUE(Generate(cluster.inference(), CallOf("agent", 2)).status.ok());
  v1::GenerateRequest second = CallOf("agent", kAnswer);
  second.set_stage(1);
  v1::GenerateRequest other = CallOf(tenant_of_other.empty() ? "new" : "agent", kAnswer);
  other.set_tenant(tenant_of_other);
  const std::vector<std::string> turns =
      OrderOf(cluster, {{"plain", SyntheticRequest(10, kAnswer)}, {"other", other}, {"second call", second}});
  EXPECT_EQ(cluster.State().requests().agent_calls(), 3u);
  EXPECT_EQ(cluster.State().steps().drift_tokens(), 0);
  cluster.StopCleanly();
  return turns;
}

TEST(Agents, TheNextCallOfAnOlderAgentGoesBeforeYoungerRequests) {
  EXPECT_THAT(OrderUnder("due", "bf_io_auto"), ElementsAre("second call", "plain", "other"));
}

TEST(Agents, AgentsOfTwoTenantsWithTheSameNameAreDistinct) {
  EXPECT_THAT(OrderUnder("age", "fcfs", "another"), ElementsAre("second call", "plain", "other"));
}

TEST(Agents, WithoutAnAgentOrderCallsAreIndependent) {
  EXPECT_THAT(OrderUnder("off", "bf_io_auto"), ElementsAre("plain", "other", "second call"));
}

// The second call of an older agent, placed while a worker computes a long prompt in chunks of 16 tokens,
// gets its tokens before that prompt is computed.
TEST(Agents, InsideAWorkerTheCallOfAnOlderAgentIsComputedFirst) {
  for (const std::string order : {"fcfs", "urgency"}) {
    SCOPED_TRACE(order);
    ClusterOptions options;
    options.worker_processes = 1;
    options.worker_flags = {"--c=0.004",         "--tl=0",
                            "--slots=3",         "--kv_tokens=20000",
                            "--token_budget=16", absl::StrCat("--scheduler=sarathi:", order)};
    Cluster cluster(options);
    if (!cluster.ok()) return;
    EXPECT_TRUE(Generate(cluster.inference(), CallOf("agent", 2)).status.ok());
    // Steps pass, so that the plain request is younger than the agent's call.
    EXPECT_TRUE(Generate(cluster.inference(), SyntheticRequest(10, 20)).status.ok());
    std::mutex mutex;
    std::vector<std::string> ended;
    const auto run = [&](const std::string& name, const v1::GenerateRequest& request) {
      EXPECT_TRUE(Generate(cluster.inference(), request).status.ok());
      const std::lock_guard<std::mutex> lock(mutex);
      ended.push_back(name);
    };
    std::thread plain([&] { run("plain", SyntheticRequest(10'000, 2)); });
    EXPECT_TRUE(cluster.WaitFor("the long prompt on the worker", [](const v1::ClusterState& state) {
      return state.workers_size() > 0 && state.workers(0).active_requests() == 1;
    }));
    v1::GenerateRequest second = CallOf("agent", 2);
    second.set_stage(1);
    run("second call", second);
    plain.join();
    if (order == "urgency") {
      EXPECT_THAT(ended, ElementsAre("second call", "plain"));
    } else {
      EXPECT_THAT(ended, ElementsAre("plain", "second call"));
    }
    cluster.StopCleanly();
  }
}

TEST(Agents, FewerRemainingTokensGoFirstAmongAgentsOfOneAge) {
  ClusterOptions options = OneSlot("due", "fcfs");
  // remaining_tokens moves a call by at most 64 steps, so fewer steps must pass between the two.
  options.worker_flags[0] = "--c=0.1";
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  v1::GenerateRequest long_one = CallOf("long", 2), short_one = CallOf("short", 2);
  long_one.set_remaining_tokens(4000);
  EXPECT_THAT(OrderOf(cluster, {{"long", long_one}, {"short", short_one}}), ElementsAre("short", "long"));
  v1::GenerateRequest bad = SyntheticRequest(10, 1);
  bad.set_remaining_tokens(1);
  const GenerateResult refused = Generate(cluster.inference(), bad);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.status.error_message(), "stage, remaining_tokens and parent_timeout need parent_id");
  cluster.StopCleanly();
}

TEST(Agents, TheLoadGeneratorSendsCallsInOrderAndReportsAgents) {
  Cluster cluster(ClusterOptions{});
  ASSERT_TRUE(cluster.ok());
  const std::string folder = TestDirectory();
  const RunResult run = RunProgram(
      "bfio_loadgen",
      {absl::StrCat("--target=", cluster.address()), "--agents=sequence:3,fork_join:4", "--arrival=poisson",
       "--rate=40", "--requests=40", "--profile=code", absl::StrCat("--json=", folder, "/agents.json"),
       absl::StrCat("--html=", folder, "/agents.html")});
  ASSERT_EQ(run.code, 0) << run.err << run.out << cluster.router().Stderr();
  const nlohmann::json report = nlohmann::json::parse(std::ifstream(absl::StrCat(folder, "/agents.json")));
  // 20 agents of 3 calls and 20 of 1 + 4 + 1.
  EXPECT_EQ(report["requests_sent"], 20 * 3 + 20 * 6);
  EXPECT_EQ(report["completed"], 180);
  EXPECT_EQ(report["agents"]["completed"], 40);
  EXPECT_EQ(report["agents"]["failed"], 0);
  EXPECT_EQ(report["agents"]["e2e_s"]["count"], 40);
  // An agent takes at least as long as its calls, three of which are sent one after the other.
  EXPECT_GT(report["agents"]["e2e_s"]["max"], report["e2e_s"]["max"]);
  EXPECT_GT(report["agents"]["e2e_s"]["mean"].get<double>(), 2 * report["e2e_s"]["mean"].get<double>());
  EXPECT_EQ(report["settings"]["agents"], "sequence:3,fork_join:4");
  std::ifstream page(absl::StrCat(folder, "/agents.html"));
  const std::string html((std::istreambuf_iterator<char>(page)), std::istreambuf_iterator<char>());
  EXPECT_NE(html.find("E2E of agents"), std::string::npos);
  EXPECT_EQ(cluster.State().requests().agent_calls(), 180u);
  cluster.StopCleanly();
}

}  // namespace
}  // namespace bfio::testing
