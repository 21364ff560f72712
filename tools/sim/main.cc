// bfio_sim: simulates scheduling policies without GPUs.
//
// Purpose: dispatches subcommands by name; they are implemented in the folders beside this file.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/shutdown.h"
#include "common/config/absl_flags.h"
#include "common/config/program.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"
#include "tools/sim/calibrate/calibrate_command.h"
#include "tools/sim/cells/cells.h"
#include "tools/sim/dominance/dominance_command.h"
#include "tools/sim/replay/replay_command.h"
#include "tools/sim/run_command.h"
#include "tools/sim/serve/serve_command.h"
#include "tools/sim/serve/serve_rule.h"
#include "tools/sim/workload_command.h"

namespace bfio::sim {
namespace {

struct Subcommand {
  std::string name;
  std::string summary;
  std::function<absl::Status()> run;
  // Flags of bfio_sim that the subcommand shares; its help lists them beside its own flags.
  std::set<std::string, std::less<>> shares = {};
};

std::vector<Subcommand> Subcommands() {
  std::vector<Subcommand> commands;
  commands.push_back(
      {"replay", "repeats the decisions of a router's --decision_log and compares them", RunReplayCommand});
  commands.push_back({"calibrate", "the cost of a step, from workers' --step_log", RunCalibrateCommand});
  commands.push_back(
      {"workload", "the requests of --trace or --profile as CSV; --json: their load", RunWorkloadCommand});
  commands.push_back({"dominance", "compares a policy with every baseline over a grid", RunDominanceCommand});
  commands.push_back({"admit",
                      "one worker's KV memory under an admission rule",
                      RunAdmitCommand,
                      {"kv_tokens", "max_new_tokens", "profile", "requests", "seed", "trace"}});
  commands.push_back(
      {"hindsight", "admission rules against the best schedule of small instances", RunHindsightCommand});
  commands.push_back({"engine",
                      "an engine with a batch scheduler",
                      RunEngineCommand,
                      {"load", "profile", "requests", "seed", "trace"}});
  commands.push_back({"serve",
                      "prompts and decodes of engines behind a barrier, by rule",
                      RunServeCommand,
                      {"jitter", "load", "profile", "rule", "seed", "slots", "trace", "workers"}});
  commands.push_back({"serve-grid",
                      "one such rule against all others with their best budgets",
                      RunServeGridCommand,
                      {"groups", "jitter", "lag", "loads", "rule", "seeds", "threads", "trace"}});
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
      "  bfio_sim workload --profile=code --requests=1000 >code.csv\n\n"
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

// Whether the help of a flag begins with "NAME: ", or with a list of subcommands that contains NAME ("admit,
// serve: ").
bool IsFlagOf(const Subcommand& command, const absl::CommandLineFlag& flag) {
  if (command.shares.contains(flag.Name())) return true;
  const std::string help = flag.Help();
  const std::vector<std::string> names =
      absl::StrSplit(help.substr(0, std::min(help.find(':'), help.size())), ", ");
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name == command.name || absl::StartsWith(name, absl::StrCat(command.name, " "));
  });
}

// Handles `bfio_sim NAME --help`, which prints only that subcommand's flags. False: another command line.
bool HelpedWithSubcommand(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (std::none_of(arguments.begin(), arguments.end(),
                   [](const std::string& a) { return a == "--help" || a == "-h"; }))
    return false;
  for (const Subcommand& command : Subcommands()) {
    if (std::find(arguments.begin(), arguments.end(), command.name) == arguments.end()) continue;
    std::map<std::string, absl::CommandLineFlag*> flags;
    for (const auto& [name, flag] : absl::GetAllFlags()) {
      if (IsFlagOf(command, *flag)) flags.emplace(name, flag);
    }
    std::printf("bfio_sim %s: %s\n\n", command.name.c_str(), command.summary.c_str());
    for (const auto& [name, flag] : flags) {
      std::printf("  --%s=%s\n      %s\n", name.c_str(), flag->DefaultValue().c_str(), flag->Help().c_str());
    }
    return true;
  }
  return false;
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
  if (bfio::sim::HelpedWithSubcommand(argc, argv)) return 0;
  const bfio::ProgramInfo info = {"bfio_sim", BFIO_VERSION, bfio::sim::Usage()};
  const std::vector<std::string> arguments = bfio::InitProgram(argc, argv, info);
  bfio::ShutdownSignal::Install();
  const absl::Status status = bfio::sim::RunNamed(arguments);
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
