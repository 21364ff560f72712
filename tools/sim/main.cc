// bfio_sim: how a policy would have done, without GPUs.
//
// Purpose: subcommands by name; the work is in the folders beside this file.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bfio/v1/config.pb.h"
#include "common/base/shutdown.h"
#include "common/config/program.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"
#include "tools/sim/calibrate/calibrate_command.h"
#include "tools/sim/dominance/dominance_command.h"
#include "tools/sim/experiment/command.h"
#include "tools/sim/replay/replay_command.h"
#include "tools/sim/run_command.h"
#include "tools/sim/serve/serve_command.h"
#include "tools/sim/serve/serve_rule.h"

namespace bfio::sim {
namespace {

struct Subcommand {
  std::string name;
  std::string summary;
  std::function<absl::Status()> run;
};

std::vector<Subcommand> Subcommands() {
  std::vector<Subcommand> commands;
  for (const ExperimentInfo& experiment : Experiments()) {
    commands.push_back(
        {experiment.name, experiment.summary, [&experiment] { return RunExperiment(experiment); }});
  }
  commands.push_back(
      {"replay", "does the core decide a router's --decision_log again as it did?", RunReplayCommand});
  commands.push_back({"calibrate", "the cost of a step, from workers' --step_log", RunCalibrateCommand});
  commands.push_back({"dominance", "is it never worse than any baseline?", RunDominanceCommand});
  commands.push_back({"serve", "prompts and decodes of engines behind a barrier, by rule", RunServeCommand});
  commands.push_back(
      {"serve-grid", "one such rule against all others with their best budgets", RunServeGridCommand});
  return commands;
}

std::string Usage() {
  std::string usage =
      "bfio_sim runs a scheduling policy on a trace in a simulated group of workers that share a barrier, "
      "and prints\n"
      "imbalance (G max L - sum L, tokens), idle fraction, throughput, latencies, energy and decision "
      "times.\n\n"
      "  bfio_sim --profile=conversation --policy=fcfs,least_tokens,bf_io_auto\n"
      "  bfio_sim --trace=AzureLLMInferenceTrace_conv.csv --policy=bf_io --objective=paper --json\n"
      "  bfio_sim --trace=burstgpt.csv --draw=replacement --requests=100000 --policy=fcfs\n"
      "  bfio_sim table1 --trace=burstgpt.csv --out=results    # writes results/table1.html and more\n\n"
      "Subcommands:\n";
  for (const Subcommand& command : Subcommands()) {
    absl::StrAppendFormat(&usage, "  %-15s %s\n", command.name, command.summary);
  }
  absl::StrAppend(&usage, "\nPolicies:\n");
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) {
    absl::StrAppendFormat(&usage, "  %-15s %s\n", policy.name, policy.summary);
  }
  absl::StrAppend(&usage, "\nLookaheads:\n");
  for (const core::LookaheadInfo& lookahead : core::RegisteredLookaheads()) {
    absl::StrAppendFormat(&usage, "  %-15s %s\n", lookahead.name, lookahead.summary);
  }
  absl::StrAppend(&usage, "\nRules of serve:\n");
  for (const ServeRuleInfo& rule : ServeRules()) {
    absl::StrAppendFormat(&usage, "  %-15s %s\n", rule.name, rule.summary);
  }
  return usage;
}

absl::Status RunNamed(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return RunPolicies();
  if (arguments.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arguments[1], "'"));
  }
  for (const Subcommand& command : Subcommands()) {
    if (command.name == arguments[0]) return command.run();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unexpected argument '", arguments[0], "'; bfio_sim --help lists the subcommands"));
}

}  // namespace
}  // namespace bfio::sim

int main(int argc, char** argv) {
  const bfio::ProgramInfo info = {"bfio_sim", BFIO_VERSION, bfio::sim::Usage()};
  const std::vector<std::string> arguments = bfio::InitProgram(argc, argv, info, bfio::v1::SimConfig());
  bfio::ShutdownSignal::Install();
  const absl::Status status = bfio::sim::RunNamed(arguments);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
