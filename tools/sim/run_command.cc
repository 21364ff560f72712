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

}  // namespace

absl::Status RunPolicies() {
  absl::StatusOr<SimOptions> options = OptionsFromFlags();
  if (!options.ok()) return options.status();
  const absl::StatusOr<Trace> trace = WorkloadFromFlags(options->seed, options->requests);
  if (!trace.ok()) return trace.status();
  const bool json = absl::GetFlag(FLAGS_json);
  bool header = !json;
  // One after the other, so that decision times are not disturbed.
  for (const auto& policy : absl::StrSplit(absl::GetFlag(FLAGS_policy), ',')) {
    options->policy = std::string(policy);
    absl::StatusOr<std::unique_ptr<Simulation>> simulation = Simulation::Create(*options, *trace);
    if (!simulation.ok()) return simulation.status();
    if (std::exchange(header, false)) std::cout << TableHeader() << std::endl;
    const absl::StatusOr<nlohmann::ordered_json> run = (*simulation)->Run(ShowProgress(*options));
    if (!run.ok()) return run.status();
    std::cout << (json ? run->dump() : TableLine(*run)) << std::endl;
    if (!json && run->contains("shadows")) std::cout << ShadowLines(run->at("shadows"));
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
