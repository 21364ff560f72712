// The content of steps, through real processes: chunked prefill under the router's control, an adaptive token
// budget, latency objectives of requests, and deadlines of agents.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

using ::testing::HasSubstr;

// Prompt tokens of the steps for a prompt of 1,000 tokens on one of four ranks without decodes.
std::vector<int64_t> ChunksOfALonePrompt() {
  const std::string log = absl::StrCat(TestDirectory(), "/steps.csv");
  ClusterOptions options = {.worker_processes = 1,
                            .ranks_per_process = 4,
                            .worker_flags = {"--c=0.0005", "--tl=0", "--slots=8", "--token_budget=512",
                                             absl::StrCat("--step_log=", log)}};
  Cluster cluster(options);
  if (!cluster.ok()) return {};
  // The ranks' first report says how they compute prompts.
  EXPECT_TRUE(Generate(cluster.inference(), SyntheticRequest(10, 1)).status.ok());
  EXPECT_TRUE(Generate(cluster.inference(), SyntheticRequest(1000, 2)).status.ok());
  const v1::ClusterState state = cluster.State();
  for (const v1::WorkerState& worker : state.workers()) {
    EXPECT_EQ(worker.token_budget(), 512u);
    EXPECT_EQ(worker.pending_prefill_tokens(), 0u);
  }
  cluster.StopCleanly();
  std::vector<int64_t> pieces;
  for (const int64_t tokens : StepLogColumn(log, "prefill_tokens")) {
    if (tokens > 0) pieces.push_back(tokens);
  }
  const auto first = std::find(pieces.begin(), pieces.end(), 10);
  EXPECT_NE(first, pieces.end());
  if (first != pieces.end()) pieces.erase(first);
  return pieces;
}

TEST(Steps, APromptThatDelaysNoDecodeUsesTheWholeBudget) {
  EXPECT_THAT(ChunksOfALonePrompt(), ::testing::ElementsAre(512, 488));
}

// Ranks that have reported the cost of their batches compute a prompt in chunks smaller than their budget
// while others decode, and every request receives its tokens.
TEST(Steps, APromptIsSpreadOverStepsWhileOthersDecode) {
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
  const std::vector<int64_t> chunks = StepLogColumn(log, "prefill_tokens");
  const auto admitted = StepLogColumn(log, "admitted");
  ASSERT_EQ(chunks.size(), admitted.size());
  int64_t steps_with_prompts = 0, steps_with_new = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    steps_with_prompts += chunks[i] > 0 ? 1 : 0;
    steps_with_new += admitted[i] > 0 ? 1 : 0;
  }
  EXPECT_GT(steps_with_prompts, steps_with_new + steps_with_new / 2);
}

v1::GenerateRequest CallUntil(const std::string& parent, uint32_t output, absl::Duration timeout) {
  v1::GenerateRequest request = SyntheticRequest(10, output);
  request.set_parent_id(parent);
  if (timeout > absl::ZeroDuration()) {
    request.mutable_parent_timeout()->set_seconds(absl::ToInt64Seconds(timeout));
    request.mutable_parent_timeout()->set_nanos(
        static_cast<int32_t>(absl::ToInt64Nanoseconds(timeout % absl::Seconds(1))));
  }
  return request;
}

TEST(ParentDeadlines, EndTheParentsCallsAndRefuseThoseThatComeAfter) {
  ClusterOptions options = {.worker_processes = 1, .worker_flags = {"--c=0.005", "--tl=0", "--slots=1"}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  // One request runs and one waits, each for four minutes of tokens; only the second has a deadline.
  std::vector<GenerateResult> results(2);
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    v1::GenerateRequest endless = CallUntil("a", 50'000, absl::ZeroDuration());
    results[0] = Generate(cluster.inference(), endless);
  });
  ASSERT_TRUE(cluster.WaitFor("a call that runs", [](const v1::ClusterState& state) {
    return state.workers(0).active_requests() == 1;
  }));
  threads.emplace_back([&] {
    v1::GenerateRequest endless = CallUntil("a", 50'000, absl::Seconds(1));
    // It may end at any token, so its maximum length does not predict its end.
    endless.set_ignore_eos(false);
    results[1] = Generate(cluster.inference(), endless);
  });
  for (std::thread& thread : threads) thread.join();
  for (const GenerateResult& result : results) {
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_EQ(result.status.error_message(), "the parent's deadline has passed");
  }
  const GenerateResult late = Generate(cluster.inference(), CallUntil("a", 1, absl::ZeroDuration()));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // 1,000 tokens of 5 ms do not fit into a second; neither does a call that 1,000 further tokens must follow.
  const GenerateResult hopeless = Generate(cluster.inference(), CallUntil("b", 1000, absl::Seconds(1)));
  EXPECT_EQ(hopeless.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(hopeless.status.error_message(), HasSubstr("the parent needs 1000 more tokens"));
  v1::GenerateRequest first = CallUntil("c", 1, absl::Seconds(1));
  first.set_remaining_tokens(1000);
  EXPECT_EQ(Generate(cluster.inference(), first).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Generate(cluster.inference(), CallUntil("d", 3, absl::Seconds(60))).status.ok());
  EXPECT_EQ(cluster.State().requests().refused_parent_deadline(), 3u);
  ASSERT_TRUE(cluster.WaitFor(
      "free slots", [](const v1::ClusterState& state) { return state.workers(0).active_requests() == 0; }));
  cluster.StopCleanly();
}

}  // namespace
}  // namespace bfio::testing
