#include "tools/sim/experiment/command.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/config/command_line.h"
#include "nlohmann/json.hpp"
#include "tools/sim/experiment/output.h"
#include "tools/sim/flags.h"

ABSL_DECLARE_FLAG(std::string, trace);
ABSL_DECLARE_FLAG(std::string, profile);
ABSL_DECLARE_FLAG(bool, json);
ABSL_FLAG(std::string, out, "bfio_experiments", "experiments: folder that gets the CSV, JSON and HTML files");
ABSL_FLAG(uint32_t, seeds, 0, "experiments: seeds 1 to this, 0 for 5; dominance: 0 for 3");
ABSL_FLAG(double, shorten, 1, "experiments: runs are so many times shorter, for a quick look");

namespace bfio::sim {
namespace {

constexpr int64_t kExperimentSeeds = 5;
// Rows of a profile that stand for it where rows are drawn from a workload.
constexpr int64_t kProfileRows = 100'000;

absl::StatusOr<std::vector<Workload>> Workloads(const char* default_profile) {
  std::vector<Workload> workloads;
  for (const auto& path : absl::StrSplit(absl::GetFlag(FLAGS_trace), ',', absl::SkipEmpty())) {
    absl::StatusOr<Trace> trace = ReadTrace(std::string(path));
    if (!trace.ok()) return trace.status();
    workloads.push_back({std::filesystem::path(std::string(path)).stem().string(),
                         std::make_shared<const Trace>(*std::move(trace))});
  }
  std::string profiles = absl::GetFlag(FLAGS_profile);
  if (workloads.empty() && profiles.empty()) profiles = default_profile;
  for (const auto& profile : absl::StrSplit(profiles, ',', absl::SkipEmpty())) {
    absl::StatusOr<Trace> trace = SampleProfile(profile, kProfileRows, 1);
    if (!trace.ok()) return trace.status();
    workloads.push_back(
        {absl::StrCat("profile ", profile), std::make_shared<const Trace>(*std::move(trace))});
  }
  return workloads;
}

// One line that is rewritten on a terminal, a line now and then elsewhere.
Runner::Progress ShowProgress(const char* name) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const absl::Duration every = terminal ? absl::Milliseconds(100) : absl::Seconds(5);
  return [=, next = MonotonicNow() + every](double share, const std::string& run) mutable {
    const bool last = share >= 1;
    if (MonotonicNow() < next && !(terminal && last)) return;
    next = MonotonicNow() + every;
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(share * kWidth);
    std::fprintf(stderr, "%s%s [%s%s] %3.0f %%  %s%s", terminal ? "\r\033[K" : "", name,
                 std::string(filled, '#').c_str(), std::string(kWidth - filled, '.').c_str(), 100 * share,
                 last ? "" : run.c_str(), terminal && !last ? "" : "\n");
  };
}

}  // namespace

absl::Status RunExperiment(const ExperimentInfo& experiment) {
  ExperimentContext context;
  absl::StatusOr<SimOptions> base = OptionsFromFlags();
  if (!base.ok()) return base.status();
  context.base = *std::move(base);
  context.workers_given = FlagWasGiven("workers");
  context.policies = PoliciesFromFlags();
  absl::StatusOr<std::vector<Workload>> workloads = Workloads(experiment.profile);
  if (!workloads.ok()) return workloads.status();
  context.workloads = *std::move(workloads);
  context.seeds = absl::GetFlag(FLAGS_seeds) > 0 ? absl::GetFlag(FLAGS_seeds) : kExperimentSeeds;
  context.shorten = absl::GetFlag(FLAGS_shorten);
  if (!(context.shorten >= 1 && context.shorten <= 1e6)) {
    return absl::InvalidArgumentError("--shorten must lie between 1 and 1e6");
  }
  // Before minutes are spent on what cannot be written.
  if (absl::Status status = MakeFolder(absl::GetFlag(FLAGS_out)); !status.ok()) return status;
  const Runner runner(ThreadsFromFlags(), ShowProgress(experiment.name),
                      [] { return !ShutdownSignal::Requested(); });
  context.runner = &runner;
  absl::StatusOr<Findings> findings = experiment.run(context);
  if (!findings.ok()) return findings.status();
  findings->name = experiment.name;
  findings->title = experiment.title;
  const absl::StatusOr<std::vector<std::string>> paths = WriteFindings(*findings, absl::GetFlag(FLAGS_out));
  if (!paths.ok()) return paths.status();
  if (absl::GetFlag(FLAGS_json)) {
    std::cout << FindingsJson(*findings).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
              << std::endl;
    return absl::OkStatus();
  }
  for (const report::Table& table : findings->tables) std::cout << TableText(table) << "\n";
  std::cout << "written: " << absl::StrJoin(*paths, ", ") << std::endl;
  return absl::OkStatus();
}

}  // namespace bfio::sim
