// bfio_sim: simulates scheduling policies without GPUs. Dispatches subcommands by name; they are implemented
// in the folders beside this file.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/base/shutdown.h"
#include "common/base/version.h"
#include "common/config/program.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"
#include "tools/sim/commands.h"
#include "tools/sim/serve/hand_off_rules.h"
#include "tools/sim/serve/serve_rule.h"

namespace bfio::sim {
namespace {

struct Subcommand {
  const char* name;
  const char* summary;
  const char* example;
  absl::Status (*run)(const ReadOptions& read);
};

constexpr Subcommand kSubcommands[] = {
    {"replay", "repeats the decisions of a router's --decision_log and compares them",
     "bfio_sim replay --log=/var/log/bfio/decisions --what_if=lpt", RunReplayCommand},
    {"estimate", "says from the metrics of a running cluster what bfio would change",
     "bfio_sim estimate --metrics=http://10.0.0.1:8200-8207 --slots=256 --token_budget=8192 "
     "--html=estimate.html",
     RunEstimateCommand},
    {"workload", "prints the requests of --trace or --profile as CSV; with --json their load",
     "bfio_sim workload --profile=code --requests=1000 >code.csv", RunWorkloadCommand},
    {"dominance", "compares a policy with every baseline over a grid",
     "bfio_sim dominance --ranks=16 --loads=20,60 --depths=none --policy=fcfs,lpt --json",
     RunDominanceCommand},
    {"serve", "simulates prompts and decodes of engine ranks that share a barrier",
     "bfio_sim serve --profile=conversation --rule=bf_io --load=0.7", RunServeCommand},
    {"serve-grid", "compares one rule of serve with all others at their best budgets",
     "bfio_sim serve-grid --ranks=4 --loads=0.7 --seeds=1 --threads=2", RunServeGridCommand},
    {"hand-offs", "compares rules of disaggregated prefill",
     "bfio_sim hand-offs --profiles=conversation --ranks=8 --loads=0.7 --closed=none --rules=bfio,llm_d",
     RunHandOffsCommand},
    {"prefixes", "compares placement policies for engine ranks with prefix caches",
     "bfio_sim prefixes --workloads=chat --ranks=8 --loads=0.7 --policies=least_requests,least_work",
     RunPrefixesCommand},
};

std::string Usage() {
  std::string usage =
      "bfio_sim runs a scheduling policy on a trace in a simulated group of ranks that share a barrier.\n\n"
      "  bfio_sim --profile=conversation --policy=fcfs,least_tokens,bf_io_auto\n"
      "  bfio_sim --trace=AzureLLMInferenceTrace_conv.csv --policy=bf_io --objective=paper --json\n"
      "  bfio_sim --trace=burstgpt.csv --draw=replacement --requests=100000 --policy=fcfs\n"
      "  bfio_sim workload --profile=code --requests=1000 >code.csv\n\n"
      "Subcommands (bfio_sim NAME --help lists its flags):\n";
  const auto list = [&](const char* title, const auto& of) {
    absl::StrAppend(&usage, title);
    for (const auto& entry : of) absl::StrAppendFormat(&usage, "  %-15s %s\n", entry.name, entry.summary);
  };
  list("", kSubcommands);
  list("\nPolicies:\n", core::RegisteredPolicies());
  list("\nLookaheads:\n", core::RegisteredLookaheads());
  list("\nRules of serve:\n", ServeRules());
  list("\nRules of hand-offs:\n", HandOffRules());
  return usage;
}

}  // namespace
}  // namespace bfio::sim

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  bfio::ProgramInfo info = {"bfio_sim", bfio::Version(), bfio::sim::Usage()};
  auto* run = bfio::sim::RunPolicies;
  for (const bfio::sim::Subcommand& command : bfio::sim::kSubcommands) {
    const auto at = std::find(arguments.begin(), arguments.end(), absl::string_view(command.name));
    if (at == arguments.end()) continue;
    arguments.erase(at);
    info.usage = absl::StrCat("bfio_sim ", command.name, ": ", command.summary, "\n\n  ", command.example);
    run = command.run;
    break;
  }
  const absl::Status status = run([&](bfio::OptionTable& table) {
    bfio::InitWithoutArguments(static_cast<int>(arguments.size()), arguments.data(), info, table);
    bfio::ShutdownSignal::Install();
  });
  return status.ok() ? 0 : bfio::ExitWith(info, status);
}
