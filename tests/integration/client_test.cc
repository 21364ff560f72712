// What a client sees of its requests: how soon a slot is free, how prompts share steps, the order of agents'
// calls. What the router refuses is in tests/unit/router/requests.
#include <gmock/gmock.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

// One slot, so that requests end in the order in which they are placed.
ClusterOptions OneSlot(double step_s, std::vector<std::string> router_flags = {}) {
  return {.worker_processes = 1,
          .router_flags = std::move(router_flags),
          .worker_flags = {absl::StrCat("--c=", step_s), "--tl=0", "--slots=1", "--kv_tokens=4000"}};
}

// Steps so slow that few pass even while a busy machine delays the test.
TEST(Client, AVanishedClientFreesItsSlotWithinTwoSteps) {
  Cluster cluster(OneSlot(0.4 * kSlowdown));
  ASSERT_TRUE(cluster.ok());
  RequestStream running(cluster.inference(), SyntheticRequest(10, 3000));
  ASSERT_TRUE(running.Read());
  const uint64_t before = cluster.State().steps().steps();
  running.Cancel();
  // The router counts by the worker's reports, so the slot is free for it one report later.
  ASSERT_TRUE(cluster.WaitFor("the free slot", [](const v1::ClusterState& s) { return Running(s) == 0; }));
  EXPECT_LE(cluster.State().steps().steps() - before, 2u + 2u)
      << "two steps, the one under way and the report";
  EXPECT_EQ(running.End().status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(cluster.State().requests().cancelled(), 1u);
}

// Ranks that have reported the cost of their batches compute a prompt in chunks smaller than their budget
// while others decode.
TEST(Client, APromptIsSpreadOverStepsWhileOthersDecode) {
  const std::string log = absl::StrCat(TestDirectory(), "/levels.csv");
  ClusterOptions options = {.worker_processes = 1,
                            .ranks_per_process = 4,
                            .worker_flags = {"--c=0.0005", "--tl=0", "--slots=16", "--token_budget=4000",
                                             "--sim=prefill_cost=1e-6", absl::StrCat("--step_log=", log)}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  const RunResult run =
      RunProgram("bfio_loadgen", {absl::StrCat("--target=", cluster.address()), "--profile=code",
                                  "--requests=300", "--concurrency=24", "--json=-"});
  EXPECT_EQ(run.code, 0) << run.err << run.out;
  EXPECT_THAT(run.out, HasSubstr("\"completed\": 300"));
  cluster.StopCleanly();
  // A prompt of more than 100 tokens takes one step on a rank without a level.
  const auto chunks = StepLogColumn(log, "prefill_tokens"), admitted = StepLogColumn(log, "admitted");
  const auto above_zero = [](const std::vector<int64_t>& column) {
    return std::count_if(column.begin(), column.end(), [](int64_t value) { return value > 0; });
  };
  EXPECT_GT(2 * above_zero(chunks), 3 * above_zero(admitted));
}

// The second call of an agent waits with a younger request, and with the first call of another agent, which
// may be another tenant's and have the same name.
TEST(Agents, TheNextCallOfAnOlderAgentGoesBeforeYoungerRequests) {
  struct Row {
    std::string policy, other_agent, other_tenant;
  };
  for (const Row& row : {Row{"bf_io_auto", "new", ""}, {"fcfs", "agent", "another"}}) {
    SCOPED_TRACE(row.policy);
    Cluster cluster(OneSlot(0.02, {absl::StrCat("--policy=", row.policy)}));
    ASSERT_TRUE(cluster.ok());
    const auto call = [](const std::string& agent, const std::string& tenant, uint32_t output) {
      v1::GenerateRequest request = SyntheticRequest(10, output);
      request.set_parent_id(agent);
      request.set_tenant(tenant);
      return request;
    };
    EXPECT_TRUE(Generate(cluster.inference(), call("agent", "", 2)).status.ok());
    v1::GenerateRequest second = call("agent", "", 50);
    second.set_stage(1);
    RequestStream holder(cluster.inference(), SyntheticRequest(10, 3000));
    // Steps pass, so that later requests are younger.
    for (int i = 0; i < 12; ++i) EXPECT_TRUE(holder.Read());
    std::mutex mutex;
    std::vector<std::string> ended;
    std::vector<std::thread> threads;
    const std::vector<std::pair<std::string, v1::GenerateRequest>> waiting = {
        {"plain", SyntheticRequest(10, 50)},
        {"other", call(row.other_agent, row.other_tenant, 50)},
        {"second call", second}};
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
    EXPECT_EQ(ended, (std::vector<std::string>{"second call", "plain", "other"}));
    EXPECT_EQ(cluster.State().requests().agent_calls(), 3u);
    EXPECT_EQ(cluster.State().steps().drift_tokens(), 0);
    cluster.StopCleanly();
  }
}

}  // namespace
}  // namespace bfio::testing
