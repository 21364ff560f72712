// bfio_sim: how a policy would have done, without GPUs.
//
// Purpose: flags in, tables or JSON out; the work is in simulation.h.
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "bfio/v1/config.pb.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/config/program.h"
#include "common/workload/trace.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"
#include "tools/sim/dominance/dominance_command.h"
#include "tools/sim/run/options.h"
#include "tools/sim/run/policy_stack.h"
#include "tools/sim/run/simulation.h"
#include "tools/sim/run/statistics.h"
#include "tools/sim/run/workload.h"

ABSL_FLAG(std::string, trace, "", "trace file (Azure, BurstGPT, Mooncake or generic columns)");
ABSL_FLAG(std::string, profile, "",
          "built-in workload instead of a trace; conversation when neither is given");
ABSL_FLAG(std::string, policy, "bf_io_auto",
          "policy, or several separated by commas, each simulated in turn");
ABSL_FLAG(std::string, objective, "square", "bf_io: square, paper or refill");
ABSL_FLAG(uint32_t, workers, 16, "G, workers behind one barrier");
ABSL_FLAG(uint32_t, batch, 72, "B, slots per worker");
ABSL_FLAG(uint32_t, reveal, 128, "overload mode: requests are revealed until this many wait");
ABSL_FLAG(uint32_t, horizon, 0, "H, steps of lookahead");
ABSL_FLAG(std::string, lookahead, "none",
          "predictor of completions: see the list above; oracle is told every length");
ABSL_FLAG(
    uint32_t, max_new_tokens, 0,
    "what every request says it may generate at most, and a longer one is cut off at; 0: the workload's "
    "longest");
ABSL_FLAG(uint32_t, warmup, 500, "steps before counting starts");
ABSL_FLAG(uint32_t, steps, 3000, "steps counted");
ABSL_FLAG(std::string, mode, "overload", "overload or arrivals");
ABSL_FLAG(double, load, 1, "arrivals mode: the trace's arrival times are divided by this");
ABSL_FLAG(double, c, bfio::StepCost{}.c_s, "step time: fixed part, seconds");
ABSL_FLAG(double, tl, bfio::StepCost{}.tl_s_per_token, "step time: seconds per token of the largest load");
ABSL_FLAG(uint64_t, seed, 1,
          "seed of random policies, of a profile's lengths and, above 1, of where a trace starts");
ABSL_FLAG(uint32_t, window, 0,
          "requests from the front of the pool that a policy sees; 0: 4,096, or --reveal if that is more");
ABSL_FLAG(double, discount, 1, "bf_io: what a step ahead counts against the one before it; 1 in the paper");
ABSL_FLAG(uint32_t, choices, 4, "power_of_d: d, workers drawn for each request");
ABSL_FLAG(std::string, shadow, "",
          "policies, separated by commas, that plan for every decision without being obeyed; their regrets "
          "follow the table, and decision times include theirs");
ABSL_FLAG(std::string, dump_lp, "",
          "folder that gets every counted decision as a file that CBC, HiGHS and glpsol read");
ABSL_FLAG(uint32_t, dump_lp_limit, 1000, "most files of dump_lp, per policy");
ABSL_FLAG(bool, json, false, "one JSON object per run on standard output instead of the table");

namespace bfio::sim {
namespace {

// Requests drawn from a profile; the simulation wraps round.
constexpr int64_t kProfileRequests = 20'000;
// Progress is shown for runs longer than this, this often.
constexpr absl::Duration kProgressEvery = absl::Seconds(3);

std::string Usage() {
  std::string usage =
      "bfio_sim runs a scheduling policy on a trace in a simulated group of workers that share a barrier, "
      "and prints\n"
      "imbalance (G max L - sum L, tokens), idle fraction, throughput, latencies, energy and decision "
      "times.\n\n"
      "  bfio_sim --profile=conversation --policy=fcfs,least_tokens,bf_io_auto\n"
      "  bfio_sim --trace=AzureLLMInferenceTrace_conv.csv --policy=bf_io --objective=paper "
      "--json\n"
      "  bfio_sim dominance --trace=FILE,FILE    # is it never worse than any baseline?\n\n"
      "Policies:\n";
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) {
    absl::StrAppendFormat(&usage, "  %-15s %s\n", policy.name, policy.summary);
  }
  absl::StrAppend(&usage, "\nLookaheads:\n");
  for (const core::LookaheadInfo& lookahead : core::RegisteredLookaheads()) {
    absl::StrAppendFormat(&usage, "  %-15s %s\n", lookahead.name, lookahead.summary);
  }
  return usage;
}

SimOptions OptionsFromFlags() {
  SimOptions options;
  options.objective = absl::GetFlag(FLAGS_objective);
  options.horizon = static_cast<int32_t>(absl::GetFlag(FLAGS_horizon));
  options.lookahead = absl::GetFlag(FLAGS_lookahead);
  options.max_new_tokens = absl::GetFlag(FLAGS_max_new_tokens);
  options.workers = static_cast<int32_t>(absl::GetFlag(FLAGS_workers));
  options.batch = static_cast<int32_t>(absl::GetFlag(FLAGS_batch));
  options.mode = absl::GetFlag(FLAGS_mode);
  options.reveal = absl::GetFlag(FLAGS_reveal);
  options.load = absl::GetFlag(FLAGS_load);
  options.warmup = absl::GetFlag(FLAGS_warmup);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.cost.c_s = absl::GetFlag(FLAGS_c);
  options.cost.tl_s_per_token = absl::GetFlag(FLAGS_tl);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.window = absl::GetFlag(FLAGS_window);
  options.discount = absl::GetFlag(FLAGS_discount);
  options.choices = static_cast<int32_t>(absl::GetFlag(FLAGS_choices));
  options.shadow = absl::StrSplit(absl::GetFlag(FLAGS_shadow), ',', absl::SkipEmpty());
  options.dump_lp = absl::GetFlag(FLAGS_dump_lp);
  options.dump_lp_limit = absl::GetFlag(FLAGS_dump_lp_limit);
  return options;
}

absl::StatusOr<Trace> LoadWorkload() {
  const std::string path = absl::GetFlag(FLAGS_trace), profile = absl::GetFlag(FLAGS_profile);
  if (!path.empty() && !profile.empty()) {
    return absl::InvalidArgumentError("give --trace or --profile, not both");
  }
  if (!path.empty()) {
    absl::StatusOr<Trace> trace = ReadTrace(path);
    return trace.ok() ? Rotated(*trace, absl::GetFlag(FLAGS_seed)) : trace;
  }
  return SampleProfile(profile.empty() ? "conversation" : profile, kProfileRequests,
                       absl::GetFlag(FLAGS_seed));
}

void ReportDroppedRows(const Trace& trace) {
  if (trace.dropped == 0) return;
  std::cerr << trace.source << ": " << trace.dropped << " unusable rows dropped, such as "
            << absl::StrJoin(trace.dropped_examples, "; ") << "\n";
}

Progress ShowProgress(const SimOptions& options) {
  return [&options, next = MonotonicNow() + kProgressEvery](int64_t done) mutable {
    if (ShutdownSignal::Requested()) return false;
    // A look at the clock every step would be seen in short runs.
    if (done % 64 == 0 && MonotonicNow() >= next) {
      std::cerr << options.policy << ": step " << done << " of " << options.warmup + options.steps << "\n";
      next = MonotonicNow() + kProgressEvery;
    }
    return true;
  };
}

absl::Status RunAll() {
  const absl::StatusOr<Trace> trace = LoadWorkload();
  if (!trace.ok()) return trace.status();
  ReportDroppedRows(*trace);
  const bool json = absl::GetFlag(FLAGS_json);
  SimOptions options = OptionsFromFlags();
  bool header = !json;
  for (const std::string& policy :
       std::vector<std::string>(absl::StrSplit(absl::GetFlag(FLAGS_policy), ','))) {
    options.policy = policy;
    absl::StatusOr<std::unique_ptr<Simulation>> simulation = Simulation::Create(options, *trace);
    if (!simulation.ok()) return simulation.status();
    if (std::exchange(header, false)) std::cout << TableHeader() << std::endl;
    const absl::StatusOr<nlohmann::ordered_json> run = (*simulation)->Run(ShowProgress(options));
    if (!run.ok()) return run.status();
    std::cout << (json ? run->dump() : TableLine(*run)) << std::endl;
    if (!json && run->contains("shadows")) std::cout << ShadowLines(run->at("shadows"));
  }
  return absl::OkStatus();
}

absl::Status RunDominance() {
  DominanceCommand command;
  command.base = OptionsFromFlags();
  command.traces = absl::GetFlag(FLAGS_trace);
  // What --policy says by default is one policy; here it means all baselines.
  const absl::CommandLineFlag* policy = absl::FindCommandLineFlag("policy");
  if (policy->CurrentValue() != policy->DefaultValue()) command.policies = policy->CurrentValue();
  command.json = absl::GetFlag(FLAGS_json);
  return RunDominanceCommand(command);
}

}  // namespace
}  // namespace bfio::sim

int main(int argc, char** argv) {
  const bfio::ProgramInfo info = {"bfio_sim", BFIO_VERSION, bfio::sim::Usage()};
  const std::vector<std::string> rest = bfio::InitProgram(argc, argv, info, bfio::v1::SimConfig());
  const bool dominance = !rest.empty() && rest[0] == "dominance";
  if (rest.size() > (dominance ? 1 : 0)) {
    return bfio::ExitWith(info, absl::InvalidArgumentError(
                                    absl::StrCat("unexpected argument '", rest[dominance ? 1 : 0], "'")));
  }
  bfio::ShutdownSignal::Install();
  const absl::Status status = dominance ? bfio::sim::RunDominance() : bfio::sim::RunAll();
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
