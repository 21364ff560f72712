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
#include "tools/sim/dominance/dominance_report.h"

namespace bfio::sim {
namespace {

constexpr absl::Duration kDominanceProgress = absl::Seconds(10);

bool Wanted(const std::string& name, const std::vector<std::string>& filter) {
  return filter.empty() || std::any_of(filter.begin(), filter.end(), [&](const std::string& part) {
           return absl::StrContains(absl::AsciiStrToLower(name), absl::AsciiStrToLower(part));
         });
}

absl::StatusOr<std::vector<DominanceWorkload>> Workloads(const std::vector<std::string>& traces,
                                                         const std::vector<std::string>& filter) {
  std::vector<DominanceWorkload> result;
  for (const std::string& path : traces) {
    DominanceWorkload workload;
    workload.name = std::filesystem::path(path).stem().string();
    if (!Wanted(workload.name, filter)) continue;
    BFIO_ASSIGN_OR_RETURN(workload.trace, ReadTrace(path));
    result.push_back(std::move(workload));
  }
  for (const std::string& profile : ProfileNames()) {
    if (!Wanted(profile, filter)) continue;
    DominanceWorkload workload;
    workload.name = workload.profile = profile;
    result.push_back(std::move(workload));
  }
  for (DominanceWorkload& workload : StructuredWorkloads()) {
    if (Wanted(workload.name, filter)) result.push_back(std::move(workload));
  }
  if (result.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workloads=", absl::StrJoin(filter, ","), " matches no workload"));
  }
  return result;
}

std::vector<std::string> AllBaselines() {
  std::vector<std::string> names;
  for (const core::PolicyInfo& policy : core::RegisteredPolicies()) {
    if (!absl::StartsWith(policy.name, "bf_io")) names.emplace_back(policy.name);
  }
  return names;
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
  AddNumbers(table, "groups", &options.groups, Within(1, 65536), "numbers of workers, separated by commas");
  AddNumbers(table, "loads", &options.loads, Within(1e-9, 1e9),
             "loads of arrivals mode, separated by commas, where 72 is saturation; none: no such cells");
  AddNumbers(table, "depths", &options.depths, Within(1e-9, 1e9),
             "pool depths of overload mode, separated by commas, in multiples of the mean free slots per "
             "step; none: no such cells");
  table.Add("seeds", &options.seeds, Within(1, 1e6), "number of seeds, from 1 up");
  AddThreads(table, threads);
  AddJson(table, json);
  read(table);
  EndWithRequests(table, options.base);
  options.threads = NumThreads(threads);
  if (options.baselines.empty()) options.baselines = AllBaselines();
  BFIO_ASSIGN_OR_RETURN(options.workloads, Workloads(traces, workloads));
  BFIO_ASSIGN_OR_RETURN(Dominance dominance, Dominance::Create(std::move(options)));
  if (!json) std::cout << DominanceHeader() << std::endl;
  absl::Time next = MonotonicNow() + kDominanceProgress;
  const auto done = [&](const DominanceCell& cell, size_t index) {
    if (!json) std::cout << DominanceLine(dominance, cell) << std::endl;
    if (MonotonicNow() < next) return;
    std::cerr << "dominance: " << index + 1 << " of " << dominance.cells().size() << " cells\n";
    next = MonotonicNow() + kDominanceProgress;
  };
  BFIO_RETURN_IF_ERROR(dominance.Run(done, [] { return !ShutdownSignal::Requested(); }));
  if (json) {
    PrintJson(DominanceJson(dominance));
  } else {
    std::cout << DominanceSummary(dominance) << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
