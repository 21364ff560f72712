#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/commands.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/steps_csv.h"

namespace bfio::sim {
namespace {

// Interval between progress lines; shorter runs show none.
constexpr absl::Duration kProgressEvery = absl::Seconds(3);

Progress ShowProgress(const SimOptions& options) {
  return [&options, next = MonotonicNow() + kProgressEvery](int64_t done) mutable {
    if (ShutdownSignal::Requested()) return false;
    // Reading the clock in every step would slow down short runs.
    if (done % 64 != 0 || MonotonicNow() < next) return true;
    std::cerr << options.policy << ": step " << done;
    if (options.steps > 0) std::cerr << " of " << options.warmup + options.steps;
    std::cerr << "\n";
    next = MonotonicNow() + kProgressEvery;
    return true;
  };
}

constexpr char kRunColumns[] =
    "policy:-15 avg_imbalance_tokens:11 idle_fraction:6.1% throughput_tokens_per_s:11 step_s_mean:9.3m "
    "tpot_s_mean:9.3m ttft_s_mean:9.3 wait_steps_mean:9.1 wait_steps_p99:9 wait_steps_max:9 energy_j:11 "
    "decide_us_p50:9.1 decide_us_p99:9.1 refused:7";

absl::Status RunOne(const SimOptions& options, const Trace& trace, const std::string& steps_csv, bool json) {
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<Simulation> simulation, Simulation::Create(options, trace));
  std::optional<StepsCsv> steps;
  StepTap tap;
  if (!steps_csv.empty()) {
    steps.emplace(steps_csv, options.workers);
    tap = [&steps](const StepView& view) { steps->Write(view); };
  }
  BFIO_ASSIGN_OR_RETURN(const nlohmann::ordered_json run, simulation->Run(ShowProgress(options), tap));
  if (steps) {
    BFIO_RETURN_IF_ERROR(steps->Close());
  }
  json ? PrintJson(run) : PrintRow(kRunColumns, run);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunPolicies(const ReadOptions& read) {
  SimOptions options;
  WorkloadOptions workload;
  std::vector<std::string> policies = {options.policy};
  std::string steps_csv;
  bool json = false;
  OptionTable table;
  AddRunOptions(table, options);
  table.Add("ranks|workers", &options.workers, Within(1, 65536),
            "G, number of ranks that meet in one barrier");
  AddWorkload(table, workload);
  AddJson(table, json);
  table.Add("policy", &policies, "one or more policies, separated by commas");
  table.Add("steps_csv", &steps_csv,
            "CSV file with the loads and requests of every worker in each step; needs a single --policy");
  read(table);
  EndWithRequests(table, options);
  if (policies.empty()) return absl::InvalidArgumentError("--policy is empty");
  if (policies.size() > 1 && !steps_csv.empty()) {
    return absl::InvalidArgumentError("--steps_csv needs a single --policy");
  }
  BFIO_ASSIGN_OR_RETURN(const Trace trace, ReadWorkload(workload, options.seed, options.requests));
  std::vector<SimOptions> runs;
  for (const std::string& policy : policies) {
    options.policy = policy;
    // Errors in any run are reported before the first one starts.
    BFIO_RETURN_IF_ERROR(Simulation::Create(options, trace).status());
    runs.push_back(options);
  }
  if (!json) PrintHead(kRunColumns);
  // One after the other, because concurrent runs would distort each other's decision times.
  for (const SimOptions& run : runs) {
    BFIO_RETURN_IF_ERROR(RunOne(run, trace, steps_csv, json));
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
