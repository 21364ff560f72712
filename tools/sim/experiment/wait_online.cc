// "Fluid-Based Online Scheduling under Memory Constraints" where its constants are not given: rates that
// change and are estimated online (its B.1), and the batch cap that its code sweeps.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/sim/admission/fcfs_worker.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/wait_loads.h"

namespace bfio::sim {
namespace {

using core::RequestType;

constexpr double kHorizon = 120;

using RunOf = std::function<WaitRun(uint64_t seed)>;

struct Entry {
  std::string name;
  RunOf run;
};

absl::StatusOr<std::vector<std::vector<WaitRun>>> RunEntries(const ExperimentContext& context,
                                                             const std::vector<Entry>& entries) {
  const auto seeds = static_cast<size_t>(context.seeds);
  std::vector<std::vector<WaitRun>> runs(entries.size(), std::vector<WaitRun>(seeds));
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    for (size_t seed = 1; seed <= seeds; ++seed) names.push_back(absl::StrCat(entry.name, ", seed ", seed));
  }
  const absl::Status status =
      context.runner->ForEach(names, [&](size_t i, const Runner::GoOn& go_on) -> absl::Status {
        if (go_on()) runs[i / seeds][i % seeds] = entries[i / seeds].run(i % seeds + 1);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return runs;
}

Estimate MeanOf(const std::vector<WaitRun>& runs, double WaitRun::*what) {
  std::vector<double> values;
  for (const WaitRun& run : runs) values.push_back(run.*what);
  return EstimateMean(values);
}

std::vector<std::pair<std::string, std::string>> Parameters(const ExperimentContext& context,
                                                            double horizon) {
  return {{"iteration", absl::StrFormat("%g s + %g s per token", wait::kTime.d0, wait::kTime.d1)},
          {"arrivals", absl::StrFormat("Poisson, for %g s", horizon)},
          {"seeds", absl::StrCat("1 to ", context.seeds)},
          {"intervals", "95 %, Student's t over the seeds"}};
}

// How rates go over time, as a share of the highest.
struct Course {
  std::string name;
  std::function<double(double at)> intensity;
  double mean;
};

}  // namespace

absl::StatusOr<Findings> WaitOnline(const ExperimentContext& context) {
  const double horizon = std::max(4.0, kHorizon / context.shorten);
  // The highest rates are a load of 0.45.
  const std::vector<RequestType> high = wait::AtLoad(wait::TwoTypes(), 0.45);
  const std::vector<RequestType> low = wait::AtLoad(wait::TwoTypes(), 0.15);
  const std::vector<Course> courses = {
      {"constant", [](double) { return 1.0; }, 1},
      {"a third, then all", [=](double at) { return at < horizon / 2 ? 1.0 / 3 : 1; }, 2.0 / 3},
      {"all, then a third", [=](double at) { return at < horizon / 2 ? 1 : 1.0 / 3; }, 2.0 / 3},
      {"waves of 30 s", [](double at) { return 2.0 / 3 + std::sin(2 * std::numbers::pi * at / 30) / 3; },
       2.0 / 3}};
  const auto for_high = core::WaitThresholds(high, wait::kTime, 0.9),
             for_low = core::WaitThresholds(low, wait::kTime, 0.9);
  if (!for_high.ok()) return for_high.status();
  if (!for_low.ok()) return for_low.status();
  std::vector<Entry> entries;
  std::vector<std::string> kinds;
  for (const Course& course : courses) {
    const auto options = [=](uint64_t seed) {
      WaitOptions options;
      options.time = wait::kTime;
      options.horizon = horizon;
      options.seed = seed;
      options.intensity = course.intensity;
      return options;
    };
    const auto fixed = [&](const char* name, const std::vector<int64_t>& thresholds) {
      kinds.push_back(name);
      entries.push_back({absl::StrCat(course.name, ", ", name),
                         [=](uint64_t seed) { return RunWait(high, thresholds, options(seed)); }});
    };
    fixed("for the highest rates", *for_high);
    fixed("for a third of them", *for_low);
    for (const double time_constant : {2.0, 5.0, 20.0}) {
      kinds.push_back(absl::StrFormat("online, %g s", time_constant));
      entries.push_back({absl::StrCat(course.name, ", ", kinds.back()), [=](uint64_t seed) {
                           core::WaitTuner tuner(high, wait::kTime, {time_constant});
                           return RunTunedWait(high, tuner, options(seed));
                         }});
    }
  }
  const auto runs = RunEntries(context, entries);
  if (!runs.ok()) return runs.status();
  report::Table table;
  table.title = "WAIT with rates that change: thresholds fixed, and from rates estimated online";
  table.note =
      "Two types; the highest rates are a load of 0.45. Online: the time constant of the estimate. Of what "
      "is "
      "offered: a prompt counts as one token.";
  table.columns = {{"rates", ""}, {"thresholds", ""}, {"of what is offered", "", 4},
                   {"+-", "", 4}, {"latency", "s"},   {"+-", "s", 2},
                   {"TTFT", "s"}};
  double offered = 0;
  for (const RequestType& type : high) offered += type.rate * static_cast<double>(type.output + 1);
  const size_t per_course = entries.size() / courses.size();
  for (size_t i = 0; i < entries.size(); ++i) {
    const Course& course = courses[i / per_course];
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row.emplace_back(course.name);
    row.emplace_back(kinds[i]);
    AddEstimate(row, MeanOf((*runs)[i], &WaitRun::tokens_per_s), 1 / (offered * course.mean));
    AddEstimate(row, MeanOf((*runs)[i], &WaitRun::mean_latency));
    row.emplace_back(MeanOf((*runs)[i], &WaitRun::mean_ttft).mean);
  }
  Findings findings;
  findings.tables.push_back(std::move(table));
  findings.parameters = Parameters(context, horizon);
  findings.text = {
      "Thresholds for rates that are not there any more either hold requests up (too high) or cannot carry "
      "the load (too low). Rates counted online give the thresholds of the known ones after a few time "
      "constants."};
  return findings;
}

absl::StatusOr<Findings> WaitCaps(const ExperimentContext& context) {
  const double horizon = std::max(4.0, kHorizon / context.shorten);
  const std::vector<double> loads = {0.3, 0.7};
  const std::vector<int64_t> caps = {100, 200, 400, 800, 1200, 2000};
  const std::vector<std::string> names = {"WAIT", "prefill first (vLLM)", "chunked (Sarathi)"};
  std::vector<Entry> entries;
  for (const double load : loads) {
    const std::vector<RequestType> types = wait::AtLoad(wait::Lmsys(), load);
    for (const int64_t cap : caps) {
      for (size_t kind = 0; kind < names.size(); ++kind) {
        entries.push_back({absl::StrCat(names[kind], ", cap ", cap, ", load ", load), [=](uint64_t seed) {
                             WaitOptions options;
                             options.time = wait::kTime;
                             options.horizon = horizon;
                             options.seed = seed;
                             if (kind == 0) {
                               // As the paper's code: the cap in proportion to rate times stages, over
                               // stages.
                               double all = 0;
                               for (const RequestType& type : types)
                                 all += type.rate * static_cast<double>(type.output + 1);
                               std::vector<int64_t> thresholds;
                               for (const RequestType& type : types) {
                                 thresholds.push_back(std::max<int64_t>(
                                     1, static_cast<int64_t>(static_cast<double>(cap) * type.rate / all)));
                               }
                               return RunWait(types, thresholds, options);
                             }
                             FcfsOptions fcfs;
                             fcfs.batching = kind == 1 ? Batching::kPrefillFirst : Batching::kChunked;
                             fcfs.token_budget = kind == 1 ? 4096 : 512;
                             fcfs.memory = wait::kMemory;
                             fcfs.most_running = cap;
                             fcfs.run = options;
                             return static_cast<WaitRun>(RunFcfs(types, fcfs));
                           }});
      }
    }
  }
  const auto runs = RunEntries(context, entries);
  if (!runs.ok()) return runs.status();
  Findings findings;
  findings.parameters = Parameters(context, horizon);
  findings.parameters.emplace_back("memory of the rules that do not wait",
                                   absl::StrCat(wait::kMemory, " tokens"));
  size_t at = 0;
  for (const double load : loads) {
    const double fluid = core::FluidEquilibrium(wait::AtLoad(wait::Lmsys(), load), wait::kTime)->throughput;
    report::Table table;
    table.title = absl::StrFormat("Lengths of LMSYS, load %g, over the batch cap", load);
    table.note =
        "Cap: requests in a batch; WAIT's is shared out to types and stages as in the paper's code, at least "
        "one a stage.";
    table.columns = {{"cap", ""}};
    report::Chart chart;
    chart.title = absl::StrFormat("Throughput over the batch cap, load %g", load);
    chart.x = {"cap", ""};
    chart.y = {"share of the fluid throughput", ""};
    chart.y.min = 0;
    for (const std::string& name : names) {
      for (const char* column : {"of the fluid's", "latency"})
        table.columns.push_back({absl::StrCat(name, ": ", column), column[0] == 'l' ? "s" : ""});
      chart.series.push_back({name});
    }
    for (const int64_t cap : caps) {
      std::vector<report::Cell>& row = table.rows.emplace_back();
      row.emplace_back(cap);
      for (size_t kind = 0; kind < names.size(); ++kind, ++at) {
        const Estimate rate = MeanOf((*runs)[at], &WaitRun::tokens_per_s);
        row.emplace_back(rate.mean / fluid);
        row.emplace_back(MeanOf((*runs)[at], &WaitRun::mean_latency).mean);
        AddPoint(chart.series[kind], static_cast<double>(cap), rate, 1 / fluid);
      }
    }
    findings.tables.push_back(std::move(table));
    findings.charts.push_back(std::move(chart));
  }
  findings.text = {
      "The cap that the paper's code sweeps: WAIT and batching that does not wait with so many requests in a "
      "batch."};
  return findings;
}

}  // namespace bfio::sim
