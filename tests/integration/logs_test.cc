// The decision log and the step logs of real programs: the router's decisions are repeated by a replay, and
// the cost of steps is fitted correctly, whatever happened to clients, workers and the router meanwhile.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

constexpr double kC = 0.002, kTl = 5e-7, kPrefill = 2e-6;
constexpr int kWorkers = 3, kRequests = 500;

std::string WriteTrace() {
  const std::string path = absl::StrCat(TestDirectory(), "/trace.csv");
  std::ofstream out(path);
  out << "arrived_at,num_prefill_tokens,num_decode_tokens\n";
  for (int i = 0; i < kRequests; ++i)
    out << i * 0.001 << "," << 1 + (i * 7919) % 1500 << "," << 1 + (i * 104729) % 60 << "\n";
  return path;
}

// A group whose router and workers write logs.
struct LoggedCluster {
  LoggedCluster(const std::string& name, std::vector<std::string> router_flags)
      : decisions(absl::StrCat(TestDirectory(), "/", name, ".decisions")) {
    ClusterOptions options;
    options.worker_processes = 0;  // started below, each with its own log
    options.router_flags = std::move(router_flags);
    // A time limit on decisions would make them unrepeatable.
    for (const std::string& flag :
         {absl::StrCat("--workers=", kWorkers), absl::StrCat("--decision_log=", decisions),
          absl::StrCat("--step_timeout=", 2 * kSlowdown, "s"), std::string("--decide_budget_ms=0")}) {
      options.router_flags.push_back(flag);
    }
    cluster = std::make_unique<Cluster>(options);
    for (int i = 0; i < kWorkers && cluster->ok(); ++i) {
      step_logs.push_back(absl::StrCat(TestDirectory(), "/", name, ".steps", i, ".csv"));
      workers.emplace_back(
          "bfio_worker", std::vector<std::string>{absl::StrCat("--router=", cluster->address()), "--slots=8",
                                                  absl::StrCat("--c=", kC), absl::StrCat("--tl=", kTl),
                                                  absl::StrCat("--sim=prefill_cost=", kPrefill),
                                                  absl::StrCat("--step_log=", step_logs.back())});
    }
    ok = cluster->ok() && WaitForRanks(kWorkers);
  }

  bool WaitForRanks(size_t ranks) {
    return cluster->WaitFor(absl::StrCat(ranks, " ranks"),
                            [&](const v1::ClusterState& state) { return Serving(state) == ranks; });
  }

  // Sends the trace, while some clients cancel and a worker dies.
  void RunDisturbed() {
    RunResult load;
    std::thread generator([&] {
      load = RunProgram("bfio_loadgen", {absl::StrCat("--target=", cluster->address()),
                                         absl::StrCat("--trace=", WriteTrace()), "--arrival=closed",
                                         "--concurrency=40", absl::StrCat("--requests=", kRequests)});
    });
    std::thread impatient([&] {
      for (int i = 0; i < 30; ++i) {
        const GenerateResult result =
            Generate(cluster->inference(), SyntheticRequest(100, 2000), absl::Milliseconds(20 + 5 * i));
        EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      }
    });
    cluster->WaitFor("a hundred steps", [](const v1::ClusterState& s) { return s.steps().steps() > 100; });
    workers[1].Signal(SIGKILL);
    impatient.join();
    generator.join();
    EXPECT_EQ(load.code, 0) << load.err << load.out << cluster->router().Stderr();
    EXPECT_TRUE(WaitForRanks(kWorkers - 1));
  }

  void StopWorkers() {
    for (const int i : {0, 2}) {
      workers[i].Signal(SIGTERM);
      EXPECT_EQ(workers[i].Wait(kSlowdown * absl::Seconds(40)), 0) << workers[i].Stderr();
    }
  }

  const std::string decisions;
  std::vector<std::string> step_logs;
  std::unique_ptr<Cluster> cluster;
  std::vector<Process> workers;
  bool ok = false;
};

nlohmann::json Replay(const std::string& log) {
  const RunResult run = RunProgram("bfio_sim", {"replay", absl::StrCat("--log=", log), "--json"});
  EXPECT_EQ(run.code, 0) << run.err << run.out;
  return nlohmann::json::parse(run.out, nullptr, false);
}

void ExpectIdentical(const nlohmann::json& replay) {
  ASSERT_TRUE(replay.is_object());
  EXPECT_EQ(replay["ok"], true) << replay["first_difference"];
  EXPECT_EQ(replay["identical"], replay["decisions"]) << replay["first_difference"];
  EXPECT_EQ(replay["answers_identical"], replay["answers"]);
  EXPECT_GT(replay["decisions"], 100);
  EXPECT_GT(replay["steps"], 100);
  EXPECT_GE(replay["epochs"], 2);
  EXPECT_GT(replay["requests_cancelled"], 0);
  EXPECT_GE(replay["requests_accepted"], kRequests);
}

// The bounds are far wider than the disturbance by a busy machine; a wrong fit is off by more.
void ExpectCost(const std::vector<std::string>& logs) {
  const RunResult run =
      RunProgram("bfio_sim", {"calibrate", absl::StrCat("--steps=", absl::StrJoin(logs, ",")), "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const nlohmann::json found = nlohmann::json::parse(run.out);
  ASSERT_TRUE(found["tl_s_per_token"].is_object() && found["prefill_s_per_token"].is_object()) << run.out;
  const double c = found["c_s"]["value"], tl = found["tl_s_per_token"]["value"],
               prefill = found["prefill_s_per_token"]["value"];
  EXPECT_GT(c, 0.5 * kC);
  EXPECT_LT(c, 3 * kSlowdown * kC);
  EXPECT_GT(tl, 0.5 * kTl);
  EXPECT_LT(tl, 2 * kSlowdown * kTl);
  EXPECT_GT(prefill, 0.5 * kPrefill);
  EXPECT_LT(prefill, 2 * kSlowdown * kPrefill);
  EXPECT_GE(found["workers"].size(), static_cast<size_t>(kWorkers - 1));
  EXPECT_GT(found["rows"], 300);
}

TEST(Logs, BfIoAutoReplaysIdenticallyAndTheCostOfItsStepsIsFound) {
  LoggedCluster logged("auto", {"--policy=bf_io_auto"});
  ASSERT_TRUE(logged.ok);
  logged.RunDisturbed();
  logged.StopWorkers();
  logged.cluster->router().Signal(SIGTERM);
  EXPECT_EQ(logged.cluster->router().Wait(kSlowdown * absl::Seconds(40)), 0);
  const nlohmann::json replay = Replay(logged.decisions);
  ExpectIdentical(replay);
  EXPECT_EQ(replay["ending"], "closed");
  EXPECT_GT(replay["requests_requeued"], 0);
  ExpectCost(logged.step_logs);
}

TEST(Logs, BfIoInLockstepReplaysIdenticallyThoughItsRouterWasKilled) {
  LoggedCluster logged("lockstep", {"--policy=bf_io", "--plan_mode=lockstep", "--lookahead=survival",
                                    "--horizon=8", "--objective=paper"});
  ASSERT_TRUE(logged.ok);
  logged.RunDisturbed();
  logged.cluster->router().Signal(SIGKILL);
  EXPECT_EQ(logged.cluster->router().Wait(kSlowdown * absl::Seconds(40)), 128 + SIGKILL);
  const nlohmann::json replay = Replay(logged.decisions);
  ExpectIdentical(replay);
  EXPECT_TRUE(replay["ending"] == "no_end" || replay["ending"] == "truncated") << replay["ending"];
}

TEST(Logs, FullDisksAffectNoRequest) {
  if (!std::ifstream("/dev/full")) GTEST_SKIP() << "no /dev/full";
  ClusterOptions options = {.router_flags = {"--decision_log=/dev/full"}};
  options.worker_flags.push_back("--step_log=/dev/full");
  Cluster cluster(options);
  ASSERT_TRUE(cluster.ok());
  const RunResult load = RunProgram(
      "bfio_loadgen", {absl::StrCat("--target=", cluster.address()), absl::StrCat("--trace=", WriteTrace()),
                       "--arrival=closed", "--concurrency=40", "--requests=200"});
  EXPECT_EQ(load.code, 0) << load.err << load.out;
  EXPECT_TRUE(cluster.State().process().decision_log_ended());
  cluster.StopCleanly();
  EXPECT_NE(cluster.router().Stderr().find("the decision log ends here"), std::string::npos);
  EXPECT_NE(cluster.workers()[0].Stderr().find("the step log ends here"), std::string::npos);
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
      .worker_flags = {"--log_format=json"}};
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
  const nlohmann::json joined = LineWith(cluster.workers()[0].Stderr(), "rank 0 of 1");
  ASSERT_TRUE(joined.is_object()) << cluster.workers()[0].Stderr();
  EXPECT_EQ(joined["worker"], worker_id);
  EXPECT_EQ(joined["epoch"], 1);
}

}  // namespace
}  // namespace bfio::testing
