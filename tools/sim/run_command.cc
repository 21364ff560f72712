#include "tools/sim/run_command.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/config/command_line.h"
#include "nlohmann/json.hpp"
#include "tools/sim/experiment/runner.h"
#include "tools/sim/flags.h"
#include "tools/sim/run/policy_stack.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/statistics.h"

ABSL_DECLARE_FLAG(std::string, policy);
ABSL_FLAG(bool, json, false, "JSON on standard output instead of tables; one object per run");

namespace bfio::sim {
namespace {

// Progress is shown for runs longer than this, this often.
constexpr absl::Duration kProgressEvery = absl::Seconds(3);

Progress ShowProgress(const SimOptions& options) {
  return [&options, next = MonotonicNow() + kProgressEvery](int64_t done) mutable {
    if (ShutdownSignal::Requested()) return false;
    // A look at the clock every step would be seen in short runs.
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

// One after the other, each printed when it is done.
absl::Status RunInTurn(const std::vector<PlannedRun>& runs, bool json) {
  for (const PlannedRun& planned : runs) {
    absl::StatusOr<std::unique_ptr<Simulation>> simulation =
        Simulation::Create(planned.options, *planned.trace);
    if (!simulation.ok()) return simulation.status();
    const absl::StatusOr<nlohmann::ordered_json> run = (*simulation)->Run(ShowProgress(planned.options));
    if (!run.ok()) return run.status();
    Print(*run, json);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunPolicies() {
  absl::StatusOr<SimOptions> options = OptionsFromFlags();
  if (!options.ok()) return options.status();
  absl::StatusOr<Trace> read = WorkloadFromFlags(options->seed, options->requests);
  if (!read.ok()) return read.status();
  const auto trace = std::make_shared<const Trace>(*std::move(read));
  std::vector<PlannedRun> runs;
  for (const auto& policy : absl::StrSplit(absl::GetFlag(FLAGS_policy), ',')) {
    options->policy = std::string(policy);
    // What is wrong is said before anything is run.
    if (const auto simulation = Simulation::Create(*options, *trace); !simulation.ok()) {
      return simulation.status();
    }
    runs.push_back({options->policy, *options, trace, {}});
  }
  const bool json = absl::GetFlag(FLAGS_json);
  if (!json) std::cout << TableHeader() << std::endl;
  // Runs beside each other would disturb each other's decision times, so that has to be asked for.
  if (!FlagWasGiven("threads")) return RunInTurn(runs, json);
  const Runner runner(ThreadsFromFlags(), {}, [] { return !ShutdownSignal::Requested(); });
  const absl::StatusOr<std::vector<RunJson>> results = runner.Run(runs);
  if (!results.ok()) return results.status();
  for (const RunJson& run : *results) Print(run, json);
  return absl::OkStatus();
}

}  // namespace bfio::sim
