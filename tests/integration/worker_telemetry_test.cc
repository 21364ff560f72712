// Telemetry of real workers: the cost of their steps, compared with bfio_sim calibrate on their logs;
// detection of a slow worker; and the energy of their devices.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/testing/cluster.h"

namespace bfio::testing {
namespace {

constexpr double kC = 0.002, kTl = 5e-7, kPrefill = 2e-6;

std::string WriteTrace(int requests) {
  const std::string path = absl::StrCat(TestDirectory(), "/figures.csv");
  std::ofstream out(path);
  out << "arrived_at,num_prefill_tokens,num_decode_tokens\n";
  for (int i = 0; i < requests; ++i)
    out << i * 0.001 << "," << 1 + (i * 7919) % 1500 << "," << 1 + (i * 104729) % 60 << "\n";
  return path;
}

// A group of two, each with its own flags and step log.
struct Pair {
  Pair(const std::string& name, const std::vector<std::string>& router_flags,
       const std::vector<std::string>& first_flags, const std::vector<std::string>& second_flags) {
    ClusterOptions options;
    options.worker_processes = 0;
    options.router_flags = router_flags;
    options.router_flags.push_back("--workers=2");
    options.router_flags.push_back("--decide_budget_ms=0");
    cluster = std::make_unique<Cluster>(options);
    if (!cluster->ok()) return;
    for (const auto& own : {first_flags, second_flags}) {
      steps.push_back(absl::StrCat(TestDirectory(), "/", name, ".steps", workers.size(), ".csv"));
      std::vector<std::string> flags = {absl::StrCat("--router=", cluster->address()), "--slots=8",
                                        absl::StrCat("--sim=prefill_cost=", kPrefill),
                                        absl::StrCat("--step_log=", steps.back()),
                                        absl::StrCat("--worker_id=w", workers.size())};
      flags.insert(flags.end(), own.begin(), own.end());
      workers.emplace_back("bfio_worker", flags);
    }
    ok = cluster->WaitFor("both ranks", [](const v1::ClusterState& state) {
      return state.workers_size() == 2 && state.workers(0).has_rank() && state.workers(1).has_rank();
    });
  }

  nlohmann::json Load(int requests) {
    const std::string path = absl::StrCat(TestDirectory(), "/figures.json");
    const RunResult load = RunProgram(
        "bfio_loadgen",
        {absl::StrCat("--target=", cluster->address()), absl::StrCat("--admin=", cluster->admin_address()),
         absl::StrCat("--trace=", WriteTrace(requests)), "--arrival=closed", "--concurrency=40",
         absl::StrCat("--requests=", requests), absl::StrCat("--json=", path)});
    EXPECT_EQ(load.code, 0) << load.err << load.out << cluster->router().Stderr();
    return nlohmann::json::parse(std::ifstream(path), nullptr, false);
  }

  void Stop() {
    for (Process& worker : workers) {
      worker.Signal(SIGTERM);
      EXPECT_EQ(worker.Wait(kSlowdown * absl::Seconds(40)), 0) << worker.Stderr();
    }
    cluster->router().Signal(SIGTERM);
    EXPECT_EQ(cluster->router().Wait(kSlowdown * absl::Seconds(40)), 0);
  }

  std::unique_ptr<Cluster> cluster;
  std::vector<Process> workers;
  std::vector<std::string> steps;
  bool ok = false;
};

std::vector<std::string> Cost(double factor) {
  return {absl::StrCat("--c=", factor * kC), absl::StrCat("--tl=", factor * kTl)};
}

const v1::WorkerState& WorkerNamed(const v1::ClusterState& state, const std::string& id) {
  for (const v1::WorkerState& worker : state.workers()) {
    if (worker.worker_id() == id) return worker;
  }
  ADD_FAILURE() << "no worker " << id;
  return v1::WorkerState::default_instance();
}

// Sends requests until `done` holds for the state: on a busy machine the cost of a step takes more steps to
// estimate.
v1::ClusterState LoadUntil(Pair& pair, const std::function<bool(const v1::ClusterState&)>& done) {
  const absl::Time deadline = absl::Now() + kSlowdown * absl::Seconds(120);
  while (true) {
    pair.Load(100);
    v1::ClusterState state = pair.cluster->State();
    if (done(state) || absl::Now() > deadline) return state;
  }
}

// The worker's own fit and the fit of its whole log agree, within their standard errors and an allowance for
// steps that the worker's estimate no longer includes.
TEST(WorkerMeasurements, ReportedStepCostsMatchThoseOfCalibrate) {
  Pair pair("cost", {}, Cost(1), Cost(1));
  ASSERT_TRUE(pair.ok);
  pair.Load(400);
  const v1::ClusterState state = pair.cluster->State();
  pair.Stop();
  for (int g = 0; g < 2; ++g) {
    const v1::StepCost& cost = WorkerNamed(state, absl::StrCat("w", g)).cost();
    ASSERT_TRUE(cost.has_c_s() && cost.has_tl_s_per_token() && cost.has_prefill_s_per_token())
        << cost.ShortDebugString();
    const RunResult run =
        RunProgram("bfio_sim", {"calibrate", absl::StrCat("--steps=", pair.steps[g]), "--json"});
    ASSERT_EQ(run.code, 0) << run.err;
    const nlohmann::json found = nlohmann::json::parse(run.out);
    EXPECT_GT(cost.steps(), 0.8 * found["rows"].get<double>());
    const auto near = [&](const v1::FittedValue& told, const nlohmann::json& offline) {
      const double value = offline["value"], error = offline["standard_error"];
      EXPECT_NEAR(told.value(), value, 5 * (told.standard_error() + error) + 0.1 * kSlowdown * value)
          << run.out << cost.ShortDebugString();
    };
    near(cost.c_s(), found["c_s"]);
    near(cost.tl_s_per_token(), found["tl_s_per_token"]);
    near(cost.prefill_s_per_token(), found["prefill_s_per_token"]);
    // And with the configured cost, within bounds far wider than the disturbance by a busy machine.
    EXPECT_GT(cost.tl_s_per_token().value(), 0.5 * kTl);
    EXPECT_LT(cost.tl_s_per_token().value(), 2 * kSlowdown * kTl);
  }
}

TEST(WorkerMeasurements, ASlowWorkerIsDetected) {
  // Three times as slow, so that a busy machine cannot make the other one appear slower. Both are slow enough
  // for the cost of a token to exceed a busy machine's noise.
  Pair pair("slow", {}, Cost(2), Cost(6));
  ASSERT_TRUE(pair.ok);
  const v1::ClusterState state = LoadUntil(pair, [](const v1::ClusterState& now) {
    const v1::WorkerState &fast = WorkerNamed(now, "w0"), &slow = WorkerNamed(now, "w1");
    return slow.time_per_token() > 1.5 * fast.time_per_token() && slow.time_offset() > fast.time_offset();
  });
  const v1::WorkerState &fast = WorkerNamed(state, "w0"), &slow = WorkerNamed(state, "w1");
  EXPECT_GT(slow.time_per_token(), 1.5 * fast.time_per_token()) << state.ShortDebugString();
  EXPECT_GT(slow.time_offset(), fast.time_offset());
  pair.Stop();
}

#ifdef FAKE_NVML_FOLDER
// Both workers report the same device, which always draws 200 W.
TEST(WorkerMeasurements, EnergyIsReportedOncePerDevice) {
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string path = before == nullptr ? FAKE_NVML_FOLDER : absl::StrCat(FAKE_NVML_FOLDER, ":", before);
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  setenv("FAKE_NVML_WATTS", "200", 1);
  std::vector<std::string> flags = Cost(1);
  flags.push_back("--energy_device=0000:17:00.0");
  Pair pair("energy", {}, flags, flags);
  ASSERT_TRUE(pair.ok);
  nlohmann::json report;
  // Windows are 5 s long.
  const absl::Time deadline = absl::Now() + kSlowdown * absl::Seconds(120);
  while (absl::Now() < deadline) {
    report = pair.Load(1'500);
    if (report["barrier"].contains("energy_busy_j") && report["barrier"]["energy_busy_j"] > 0) break;
  }
  ASSERT_TRUE(report["barrier"].contains("energy_busy_j")) << report;
  EXPECT_GT(report["barrier"]["energy_busy_j"], 0);
  EXPECT_GT(report["barrier"]["energy_barrier_j"], 0);
  const v1::ClusterState state = pair.cluster->State();
  double told_j = 0;
  for (const v1::WorkerState& worker : state.workers()) {
    const v1::Energy& energy = worker.energy();
    EXPECT_EQ(energy.device(), "GPU-fake");
    EXPECT_NEAR(energy.watts(), 200, 10);
    const double joules = energy.busy_j() + energy.barrier_j() + energy.parked_j();
    EXPECT_NEAR(joules, 200 * (energy.busy_s() + energy.barrier_s() + energy.parked_s()), 0.02 * joules);
    told_j += joules;
  }
  const double total_j = state.energy().busy_j() + state.energy().barrier_j() + state.energy().parked_j();
  EXPECT_GT(total_j, 0);
  EXPECT_LT(total_j, 0.5 * told_j) << "half of what both tell together, less their first windows";
  unsetenv("FAKE_NVML_WATTS");
  before == nullptr ? unsetenv("LD_LIBRARY_PATH") : setenv("LD_LIBRARY_PATH", before, 1);
  pair.Stop();
}
#endif

}  // namespace
}  // namespace bfio::testing
