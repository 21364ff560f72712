#include "tools/sim/dominance/dominance_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/workload/trace.h"
#include "nlohmann/json.hpp"
#include "router/core/policy/policy.h"
#include "tools/sim/dominance/dominance.h"
#include "tools/sim/dominance/dominance_report.h"
#include "tools/sim/flags.h"

ABSL_DECLARE_FLAG(std::string, trace);
ABSL_DECLARE_FLAG(bool, json);
ABSL_FLAG(std::string, candidate, "bf_io_auto", "dominance: the policy that is to be beaten by no baseline");
ABSL_FLAG(std::string, loads, "8,20,40,60,68,72",
          "dominance: loads of arrivals mode, 72 being saturation; none for no such cells");
ABSL_FLAG(std::string, depths, "1,4,32",
          "dominance: pool depths of overload mode, in mean free slots per step; none for no such cells");
ABSL_FLAG(uint32_t, seeds, 3, "dominance: seeds 1 to this");
ABSL_FLAG(std::string, groups, "4,16,64,256", "dominance: numbers of workers");
ABSL_FLAG(std::string, workloads, "",
          "dominance: only the workloads whose name contains one of these; a trace is named by its file, and "
          "there are conversation and code");

namespace bfio::sim {
namespace {

constexpr absl::Duration kDominanceProgress = absl::Seconds(10);

std::vector<std::string> List(const std::string& text) {
  if (text == "none") return {};
  return absl::StrSplit(text, ',', absl::SkipEmpty());
}

template <class Number, class Parse>
absl::StatusOr<std::vector<Number>> Numbers(const char* flag, const std::string& text, Parse parse) {
  std::vector<Number> result;
  for (const std::string& item : List(text)) {
    Number number;
    if (!parse(item, &number)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", text, ": '", item, "' is no number"));
    }
    result.push_back(number);
  }
  return result;
}

bool Wanted(const std::string& name) {
  const std::vector<std::string> filter = List(absl::GetFlag(FLAGS_workloads));
  return filter.empty() || std::any_of(filter.begin(), filter.end(), [&](const std::string& part) {
           return absl::StrContains(absl::AsciiStrToLower(name), absl::AsciiStrToLower(part));
         });
}

absl::StatusOr<std::vector<DominanceWorkload>> Workloads(const std::string& traces) {
  std::vector<DominanceWorkload> result;
  for (const std::string& path : List(traces)) {
    DominanceWorkload workload;
    workload.name = std::filesystem::path(path).stem().string();
    if (!Wanted(workload.name)) continue;
    BFIO_ASSIGN_OR_RETURN(workload.trace, ReadTrace(path));
    result.push_back(std::move(workload));
  }
  for (const std::string& profile : ProfileNames()) {
    if (!Wanted(profile)) continue;
    DominanceWorkload workload;
    workload.name = workload.profile = profile;
    result.push_back(std::move(workload));
  }
  for (DominanceWorkload& workload : StructuredWorkloads()) {
    if (Wanted(workload.name)) result.push_back(std::move(workload));
  }
  if (result.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workloads=", absl::GetFlag(FLAGS_workloads), " leaves none"));
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

absl::StatusOr<DominanceOptions> OptionsOfCommand() {
  DominanceOptions options;
  BFIO_ASSIGN_OR_RETURN(options.workloads, Workloads(absl::GetFlag(FLAGS_trace)));
  BFIO_ASSIGN_OR_RETURN(options.groups,
                        Numbers<int32_t>("groups", absl::GetFlag(FLAGS_groups), absl::SimpleAtoi<int32_t>));
  BFIO_ASSIGN_OR_RETURN(options.loads,
                        Numbers<double>("loads", absl::GetFlag(FLAGS_loads), absl::SimpleAtod));
  BFIO_ASSIGN_OR_RETURN(options.depths,
                        Numbers<double>("depths", absl::GetFlag(FLAGS_depths), absl::SimpleAtod));
  options.seeds = absl::GetFlag(FLAGS_seeds);
  options.candidate = absl::GetFlag(FLAGS_candidate);
  options.baselines = PoliciesFromFlags();
  if (options.baselines.empty()) options.baselines = AllBaselines();
  BFIO_ASSIGN_OR_RETURN(options.base, OptionsFromFlags());
  options.threads = ThreadsFromFlags();
  return options;
}

}  // namespace

absl::Status RunDominanceCommand() {
  const bool json = absl::GetFlag(FLAGS_json);
  BFIO_ASSIGN_OR_RETURN(DominanceOptions options, OptionsOfCommand());
  BFIO_ASSIGN_OR_RETURN(Dominance dominance, Dominance::Create(std::move(options)));
  if (!json) std::cout << DominanceHeader() << std::endl;
  absl::Time next = MonotonicNow() + kDominanceProgress;
  const auto done = [&](const DominanceCell& cell, size_t index) {
    if (!json) std::cout << DominanceLine(dominance, cell) << std::endl;
    if (MonotonicNow() < next) return;
    std::cerr << "dominance: " << index + 1 << " of " << dominance.cells().size() << " cells\n";
    next = MonotonicNow() + kDominanceProgress;
  };
  const absl::Status status = dominance.Run(done, [] { return !ShutdownSignal::Requested(); });
  if (!status.ok()) return status;
  std::cout << (json ? DominanceJson(dominance).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                     : DominanceSummary(dominance))
            << std::endl;
  return absl::OkStatus();
}

}  // namespace bfio::sim
