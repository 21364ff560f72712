// What a client sees of its requests: how soon a slot is free, and how prompts share steps. What the router
// refuses, and the order of agents' calls, is in tests/unit/router/requests.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

// One slot, so that requests end in the order in which they are placed.
ClusterOptions OneSlot(double step_s) {
  return {.worker_processes = 1,
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

}  // namespace
}  // namespace bfio::testing
