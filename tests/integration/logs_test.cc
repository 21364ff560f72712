// The decision log and the log lines of real programs.
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

// While the load runs, some clients cancel and a worker dies; at the end the router is shut down or killed.
TEST(Logs, DecisionsReplayIdenticallyWhateverHappened) {
  const std::vector<std::string> settings[] = {
      {"--policy=bf_io_auto"},
      {"--policy=bf_io:horizon=8,objective=paper", "--plan_mode=lockstep", "--lookahead=survival"}};
  for (const auto& flags : settings) {
    SCOPED_TRACE(flags.front());
    const bool killed = flags.size() > 1;
    const std::string log = absl::StrCat(TestDirectory(), "/decisions", killed);
    ClusterOptions options = {
        .worker_processes = 3,
        .router_flags = flags,
        .worker_flags = {"--slots=8", "--c=0.002", "--tl=5e-7", "--sim=prefill_cost=2e-6"}};
    // A time limit on decisions would make them unrepeatable.
    for (const std::string& flag :
         {absl::StrCat("--decision_log=", log), absl::StrCat("--step_timeout=", 2 * kSlowdown, "s"),
          std::string("--decide_budget_ms=0")}) {
      options.router_flags.push_back(flag);
    }
    Cluster cluster(options);
    ASSERT_TRUE(cluster.ok());
    RunResult load;
    std::thread generator([&] {
      load = RunProgram("bfio_loadgen", {absl::StrCat("--target=", cluster.address()), "--profile=code",
                                         "--arrival=closed", "--concurrency=40", "--requests=400"});
    });
    std::thread impatient([&] {
      for (int i = 0; i < 30; ++i) {
        const GenerateResult result =
            Generate(cluster.inference(), SyntheticRequest(100, 2000), absl::Milliseconds(20 + 5 * i));
        EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      }
    });
    cluster.WaitFor("a hundred steps", [](const v1::ClusterState& s) { return s.steps().steps() > 100; });
    cluster.workers()[1].Signal(SIGKILL);
    impatient.join();
    generator.join();
    EXPECT_EQ(load.code, 0) << load.err << load.out << cluster.router().Stderr();
    EXPECT_TRUE(cluster.WaitFor("two ranks", [](const v1::ClusterState& s) { return Serving(s) == 2; }));
    cluster.router().Signal(killed ? SIGKILL : SIGTERM);
    EXPECT_EQ(cluster.router().Wait(kSlowdown * absl::Seconds(40)), killed ? 128 + SIGKILL : 0);
    const RunResult run = RunProgram("bfio_sim", {"replay", absl::StrCat("--log=", log), "--json"});
    ASSERT_EQ(run.code, 0) << run.err << run.out;
    const nlohmann::json replay = nlohmann::json::parse(run.out);
    EXPECT_EQ(replay["ok"], true) << replay["first_difference"];
    EXPECT_EQ(replay["identical"], replay["decisions"]) << replay["first_difference"];
    EXPECT_EQ(replay["answers_identical"], replay["answers"]);
    EXPECT_GT(replay["decisions"], 100);
    EXPECT_GT(replay["steps"], 100);
    EXPECT_GE(replay["epochs"], 2);
    EXPECT_GT(replay["requests_cancelled"], 0);
    EXPECT_GT(replay["requests_requeued"], 0);
    EXPECT_GE(replay["requests_accepted"], 400);
    if (killed) {
      EXPECT_TRUE(replay["ending"] == "no_end" || replay["ending"] == "truncated") << replay["ending"];
    } else {
      EXPECT_EQ(replay["ending"], "closed");
    }
  }
}

// The first line with this text; null when there is none. Every line must be JSON.
nlohmann::json LineWith(const std::string& log, const std::string& text) {
  for (const absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    EXPECT_TRUE(json.is_object()) << line;
    if (json.is_object() && absl::StrContains(json.value("message", ""), text)) return json;
  }
  return nullptr;
}

TEST(Logs, JsonLinesSayInFieldsWhatTheyAreAbout) {
  const std::string trace = "0af7651916cd43dd8448eb211c80319c";
  ClusterOptions options = {
      .worker_processes = 1,
      .router_flags = {"--log_format=json", absl::StrCat("--client_timeout=", 300 * kSlowdown, "ms")},
      .worker_flags = {"--log_format=json", "--log_level=debug"}};
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  v1::GenerateRequest request = SyntheticRequest(10, 60'000);
  request.set_request_id("job \"1\"");
  request.set_tenant("acme");
  request.set_resumable(true);
  {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", absl::StrCat("00-", trace, "-b7ad6b7169203331-01"));
    const auto reader = cluster.inference().Generate(&context, request);
    v1::GenerateResponse response;
    ASSERT_TRUE(reader->Read(&response));
    context.TryCancel();
  }
  ASSERT_TRUE(cluster.WaitFor("the end of the abandoned request", [](const v1::ClusterState& state) {
    return state.requests().resume_expired() == 1;
  }));
  const std::string worker_id = cluster.State().workers(0).worker_id();
  cluster.StopCleanly();
  const nlohmann::json expired = LineWith(cluster.router().Stderr(), "no client has resumed it");
  ASSERT_TRUE(expired.is_object()) << cluster.router().Stderr();
  EXPECT_EQ(expired["request_id"], request.request_id());
  EXPECT_EQ(expired["tenant"], "acme");
  EXPECT_EQ(expired["trace_id"], trace);
  EXPECT_EQ(expired["rank"], 0);
  const nlohmann::json attached = LineWith(cluster.router().Stderr(), " attached ");
  ASSERT_TRUE(attached.is_object()) << cluster.router().Stderr();
  EXPECT_EQ(attached["worker"], worker_id);
  EXPECT_EQ(attached["group"], "0");
  EXPECT_EQ(LineWith(cluster.router().Stderr(), " serves with ")["epoch"], 1);
  EXPECT_TRUE(absl::StrContains(cluster.workers()[0].Stderr(), trace));
  const nlohmann::json joined = LineWith(cluster.workers()[0].Stderr(), "rank 0 of 1");
  ASSERT_TRUE(joined.is_object()) << cluster.workers()[0].Stderr();
  EXPECT_EQ(joined["worker"], worker_id);
  EXPECT_EQ(joined["epoch"], 1);
}

}  // namespace
}  // namespace bfio::testing
