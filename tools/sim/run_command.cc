#include "tools/sim/run_command.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/flags.h"
#include "tools/sim/run/policy_stack.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/statistics.h"
#include "tools/sim/run/steps_csv.h"

ABSL_DECLARE_FLAG(std::string, policy);
ABSL_FLAG(bool, json, false, "JSON on standard output instead of tables; one object per run");
ABSL_FLAG(std::string, steps_csv, "",
          "file that gets a line for each step of the run: loads and requests of every worker. One policy");

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

void Print(const nlohmann::ordered_json& run, bool json) {
  std::cout << (json ? run.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : TableLine(run))
            << std::endl;
  if (!json && run.contains("shadows")) std::cout << ShadowLines(run.at("shadows"));
  if (const int64_t refused = run.at("refused"); !json && refused > 0) {
    std::cout << "  " << refused << " requests were refused: they may come to hold more than --kv_tokens\n";
  }
}

absl::Status RunOne(const SimOptions& options, const Trace& trace, bool json) {
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<Simulation> simulation, Simulation::Create(options, trace));
  std::optional<StepsCsv> steps;
  StepTap tap;
  if (const std::string path = absl::GetFlag(FLAGS_steps_csv); !path.empty()) {
    steps.emplace(path, options.workers);
    tap = [&steps](const StepView& view) { steps->Write(view); };
  }
  BFIO_ASSIGN_OR_RETURN(const nlohmann::ordered_json run, simulation->Run(ShowProgress(options), tap));
  if (steps) {
    BFIO_RETURN_IF_ERROR(steps->Close());
  }
  Print(run, json);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunPolicies() {
  BFIO_ASSIGN_OR_RETURN(SimOptions options, OptionsFromFlags());
  BFIO_ASSIGN_OR_RETURN(const Trace trace, WorkloadFromFlags(options.seed, options.requests));
  std::vector<SimOptions> runs;
  for (const auto& policy : absl::StrSplit(absl::GetFlag(FLAGS_policy), ',')) {
    options.policy = std::string(policy);
    // Errors in any run are reported before the first one starts.
    if (const auto simulation = Simulation::Create(options, trace); !simulation.ok()) {
      return simulation.status();
    }
    runs.push_back(options);
  }
  if (runs.size() > 1 && !absl::GetFlag(FLAGS_steps_csv).empty()) {
    return absl::InvalidArgumentError("--steps_csv takes the steps of one policy");
  }
  const bool json = absl::GetFlag(FLAGS_json);
  if (!json) std::cout << TableHeader() << std::endl;
  // One after the other, because concurrent runs would distort each other's decision times.
  for (const SimOptions& run : runs) {
    BFIO_RETURN_IF_ERROR(RunOne(run, trace, json));
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
