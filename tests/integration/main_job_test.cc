// The main job: the load generator sends a trace, the router places it, workers stream the tokens back.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

// A trace of `n` requests with varied lengths and close arrivals, in the generic format.
std::string WriteTrace(int n) {
  const std::string path = absl::StrCat(TestDirectory(), "/trace.csv");
  std::ofstream out(path);
  out << "arrived_at,num_prefill_tokens,num_decode_tokens\n";
  for (int i = 0; i < n; ++i)
    out << i * 0.001 << "," << 1 + (i * 7919) % 900 << "," << 1 + (i * 104729) % 40 << "\n";
  return path;
}

int64_t TraceTokens(int n) {
  int64_t tokens = 0;
  for (int i = 0; i < n; ++i) tokens += 1 + (i * 104729) % 40;
  return tokens;
}

void RunTrace(Cluster& cluster, int requests) {
  const std::string json_path = absl::StrCat(TestDirectory(), "/report.json");
  const RunResult run =
      RunProgram("bfio_loadgen", {absl::StrCat("--target=", cluster.address()),
                                  absl::StrCat("--admin=", cluster.admin_address()),
                                  absl::StrCat("--trace=", WriteTrace(requests)), "--arrival=trace",
                                  absl::StrCat("--requests=", requests), absl::StrCat("--json=", json_path)});
  ASSERT_EQ(run.code, 0) << run.err << run.out << cluster.router().Stderr();
  const nlohmann::json report = nlohmann::json::parse(std::ifstream(json_path));
  EXPECT_EQ(report["requests_sent"], requests);
  EXPECT_EQ(report["completed"], requests);
  EXPECT_EQ(report["stream_breaches"], 0);
  EXPECT_EQ(report["output_tokens"], TraceTokens(requests));
  const v1::ClusterState state = cluster.State();
  EXPECT_EQ(state.requests().completed(), static_cast<uint64_t>(requests));
  EXPECT_EQ(state.requests().replayed(), 0u);
  EXPECT_EQ(state.steps().drift_tokens(), 0);
  EXPECT_EQ(state.steps().generated_tokens(), static_cast<uint64_t>(TraceTokens(requests)));
  EXPECT_EQ(state.waiting_requests(), 0u);
}

TEST(MainJob, EverySettingCompletesTheTrace) {
  // 24 ranks use the tree barrier instead of the star.
  const ClusterOptions pipelined{.worker_processes = 4},
      lockstep{.worker_processes = 4, .router_flags = {"--plan_mode=lockstep"}},
      many{.ranks_per_process = 12, .worker_flags = {"--c=0.002", "--tl=0", "--slots=4"}},
      predicted{.router_flags = {"--lookahead=survival", "--policy=bf_io:horizon=20"},
                .worker_flags = {"--c=0.0005", "--tl=0", "--slots=4"}},
      ended_early{.router_flags = {"--lookahead=survival", "--policy=bf_io:horizon=20,objective=paper",
                                   "--decide_budget_ms=0.001"},
                  .worker_flags = {"--c=0.005", "--tl=0", "--slots=16"}};
  for (const ClusterOptions* options : {&pipelined, &lockstep, &many, &predicted, &ended_early}) {
    Cluster cluster(*options);
    ASSERT_TRUE(cluster.ok());
    RunTrace(cluster, 400);
    if (options == &lockstep) {
      EXPECT_EQ(cluster.State().steps().late_plans(), 0u);
    }
    if (options == &predicted) {
      EXPECT_EQ(cluster.State().policy().horizon(), 20);
    }
    if (options == &ended_early) {
      const v1::StepTotals steps = cluster.State().steps();
      EXPECT_GT(steps.decisions_stopped_early(), 0u);
      EXPECT_LT(steps.decisions_stopped_early(), steps.decisions()) << "the last ones have nothing to search";
    }
    cluster.StopCleanly();
  }
}

TEST(MainJob, AnOpenLoopKeepsItsRateAndCountsTheRequestsWithinTheLimits) {
  ClusterOptions options = {
      .worker_processes = 1, .ranks_per_process = 3, .worker_flags = {"--c=0.002", "--tl=0", "--slots=32"}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  const std::string base = absl::StrCat(TestDirectory(), "/open");
  const RunResult result = RunProgram(
      "bfio_loadgen",
      {absl::StrCat("--target=", cluster.address()), absl::StrCat("--admin=", cluster.admin_address()),
       absl::StrCat("--trace=", WriteTrace(200)), absl::StrCat("--json=", base, ".json"),
       absl::StrCat("--html=", base, ".html"), "--arrival=gamma", "--burstiness=1000", "--rate=100",
       "--duration=2", "--goodput=ttft:0.000001,e2e:1000"});
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  const auto run = nlohmann::json::parse(std::ifstream(absl::StrCat(base, ".json")), nullptr, false);
  EXPECT_NEAR(run["requests_sent"].get<double>(), 200, 5);
  EXPECT_EQ(run["completed"], run["requests_sent"]);
  EXPECT_EQ(run["goodput"]["good_requests"], 0) << "no token arrives within a microsecond";
  EXPECT_EQ(run["goodput"]["missed"]["ttft"], run["completed"]);
  EXPECT_EQ(run["goodput"]["missed"]["e2e"], 0);
  EXPECT_EQ(run["barrier"]["ranks"], 3);
  std::ifstream page(absl::StrCat(base, ".html"));
  EXPECT_NE(std::string(std::istreambuf_iterator<char>(page), {}).find("\"arrival\":\"gamma\""),
            std::string::npos);
  cluster.StopCleanly();
}

}  // namespace
}  // namespace bfio::testing
