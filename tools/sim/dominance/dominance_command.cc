#include <algorithm>
#include <filesystem>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/workload/trace.h"
#include "nlohmann/json.hpp"
#include "router/core/policy/policy.h"
#include "tools/sim/commands.h"
#include "tools/sim/dominance/dominance.h"

namespace bfio::sim {
namespace {

constexpr char kDominanceColumns[] =
    "workload:-14 workers:4 mode:-8 level:5.1 step_ms:9.4 idle_fraction:6.2% best:-15 step_loss:6.2% "
    "best_fair:-15 fair_step_loss:6.2% fair_step_loss_within_95:6.2% wait_steps_p99:6 fcfs_wait_steps_p99:6";
constexpr absl::Duration kDominanceProgress = absl::Seconds(10);

bool Wanted(const std::string& name, const std::vector<std::string>& filter) {
  return filter.empty() || std::any_of(filter.begin(), filter.end(), [&](const std::string& part) {
           return absl::StrContains(absl::AsciiStrToLower(name), absl::AsciiStrToLower(part));
         });
}

absl::StatusOr<std::vector<DominanceWorkload>> Workloads(const std::vector<std::string>& traces,
                                                         const std::vector<std::string>& filter) {
  std::vector<DominanceWorkload> all = StructuredWorkloads(), result;
  const std::vector<std::string> profiles = ProfileNames();
  for (auto profile = profiles.rbegin(); profile != profiles.rend(); ++profile)
    all.insert(all.begin(), {.name = *profile, .profile = *profile});
  for (const std::string& path : traces) {
    DominanceWorkload workload{.name = std::filesystem::path(path).stem().string()};
    if (!Wanted(workload.name, filter)) continue;
    BFIO_ASSIGN_OR_RETURN(workload.trace, ReadTrace(path));
    result.push_back(std::move(workload));
  }
  std::copy_if(all.begin(), all.end(), std::back_inserter(result),
               [&](const DominanceWorkload& workload) { return Wanted(workload.name, filter); });
  if (result.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workloads=", absl::StrJoin(filter, ","), " matches no workload"));
  }
  return result;
}

}  // namespace

absl::Status RunDominanceCommand(const ReadOptions& read) {
  DominanceOptions options;
  std::vector<std::string> traces, workloads;
  int32_t threads = 0;
  bool json = false;
  OptionTable table;
  AddRunOptions(table, options.base);
  table.Add("trace", &traces, "traces, separated by commas");
  table.Add("workloads", &workloads,
            "only workloads whose name contains one of these texts, separated by commas; the name of a trace "
            "is that of its file, the others are profiles and built-in workloads");
  table.Add("candidate", &options.candidate, "policy that is compared with the baselines");
  table.Add("policy", &options.baselines, "baselines, separated by commas; empty: all");
  AddNumbers(table, "ranks|groups", &options.groups, Within(1, 65536),
             "numbers of ranks, separated by commas");
  AddNumbers(table, "loads", &options.loads, Within(1e-9, 1e9),
             "loads of arrivals mode, separated by commas, as slots in use of 72; none: not run");
  AddNumbers(table, "depths", &options.depths, Within(1e-9, 1e9),
             "pool depths of overload mode, separated by commas, in multiples of the mean free slots per "
             "step; none: not run");
  table.Add("seeds", &options.seeds, Within(1, 1e6), "number of seeds, from 1 up");
  AddThreads(table, threads);
  AddJson(table, json);
  read(table);
  EndWithRequests(table, options.base);
  options.threads = NumThreads(threads);
  const bool all = options.baselines.empty();
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) {
    if (all && !absl::StartsWith(policy.name, "bf_io")) options.baselines.emplace_back(policy.name);
  }
  BFIO_ASSIGN_OR_RETURN(options.workloads, Workloads(traces, workloads));
  BFIO_ASSIGN_OR_RETURN(Dominance dominance, Dominance::Create(std::move(options)));
  if (!json) PrintHead(kDominanceColumns);
  absl::Time next = MonotonicNow() + kDominanceProgress;
  const auto done = [&](size_t index) {
    if (!json) PrintRow(kDominanceColumns, dominance.Json(dominance.settings()[index]));
    if (MonotonicNow() < next) return;
    std::cerr << "dominance: " << index + 1 << " of " << dominance.settings().size() << " settings\n";
    next = MonotonicNow() + kDominanceProgress;
  };
  BFIO_RETURN_IF_ERROR(dominance.Run(done, [] { return !ShutdownSignal::Requested(); }));
  if (json) PrintJson(dominance.Json());
  return absl::OkStatus();
}

}  // namespace bfio::sim
