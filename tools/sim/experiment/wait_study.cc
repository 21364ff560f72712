// "Fluid-Based Online Scheduling under Memory Constraints", Section 5: WAIT and Nested WAIT against the fluid
// benchmark and against batching that does not wait, on the paper's synthetic loads and its real lengths.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "router/core/admission/fluid.h"
#include "tools/sim/admission/fcfs_worker.h"
#include "tools/sim/experiment/experiments.h"
#include "tools/sim/experiment/wait_loads.h"

namespace bfio::sim {
namespace {

using core::RequestType;

using wait::kMemory, wait::kTime;
constexpr double kHorizon = 200;

enum class Kind { kWait, kNested, kPrefillFirst, kChunked };
constexpr struct {
  Kind kind;
  const char* name;
} kKinds[] = {{Kind::kWait, "WAIT"},
              {Kind::kNested, "Nested WAIT"},
              {Kind::kPrefillFirst, "prefill first (vLLM)"},
              {Kind::kChunked, "chunked (Sarathi)"}};

struct Load {
  std::string name;
  std::vector<RequestType> types;
  // Rates times this, iterations by it shorter.
  double zeta = 1;
  double margin = 1.1;
};

std::vector<Load> Synthetic() {
  return {{"two types, known lengths", wait::TwoTypes()}, {"four types", wait::FourTypes()}};
}
Load Real() {
  return {"LMSYS, ten bins of 50 tokens", wait::Lmsys()};
}

struct Outcome {
  WaitRun run;
  int64_t evictions = 0;
  std::string thresholds;
};

struct Case {
  Load load;
  Kind kind;
};

Load Scaled(const Load& load, double rate) {
  Load scaled = load;
  for (RequestType& type : scaled.types) type.rate *= rate;
  return scaled;
}

absl::StatusOr<Outcome> RunCase(const Case& c, double horizon, uint64_t seed) {
  std::vector<RequestType> types = c.load.types;
  for (RequestType& type : types) type.rate *= c.load.zeta;
  WaitOptions options;
  options.time = {kTime.d0 / c.load.zeta, kTime.d1 / c.load.zeta};
  options.horizon = horizon;
  options.seed = seed;
  Outcome outcome;
  if (c.kind == Kind::kWait || c.kind == Kind::kNested) {
    const bool nested = c.kind == Kind::kNested;
    const core::Segments segments = core::SegmentsOf(types);
    const auto thresholds = nested ? core::NestedThresholds(segments, options.time, c.load.margin)
                                   : core::WaitThresholds(types, options.time, 0.95);
    if (!thresholds.ok()) return thresholds.status();
    outcome.run =
        nested ? RunNestedWait(types, segments, *thresholds, options) : RunWait(types, *thresholds, options);
    outcome.thresholds = absl::StrJoin(*thresholds, " ");
  } else {
    FcfsOptions fcfs;
    fcfs.batching = c.kind == Kind::kPrefillFirst ? Batching::kPrefillFirst : Batching::kChunked;
    fcfs.token_budget = c.kind == Kind::kPrefillFirst ? 4096 : 512;
    fcfs.memory = kMemory;
    fcfs.run = options;
    const FcfsRun run = RunFcfs(types, fcfs);
    outcome.run = run;
    outcome.evictions = run.evictions;
  }
  return outcome;
}

absl::StatusOr<std::vector<std::vector<Outcome>>> RunAll(const ExperimentContext& context,
                                                         const std::vector<Case>& cases, double horizon) {
  const auto seeds = static_cast<size_t>(context.seeds);
  std::vector<std::vector<Outcome>> outcomes(cases.size(), std::vector<Outcome>(seeds));
  std::vector<std::string> names;
  for (const Case& c : cases) {
    for (size_t s = 1; s <= seeds; ++s) {
      names.push_back(
          absl::StrCat(c.load.name, ", ", kKinds[static_cast<size_t>(c.kind)].name, ", seed ", s));
    }
  }
  const absl::Status status =
      context.runner->ForEach(names, [&](size_t i, const Runner::GoOn& go_on) -> absl::Status {
        if (!go_on()) return absl::OkStatus();
        auto outcome = RunCase(cases[i / seeds], horizon, i % seeds + 1);
        if (!outcome.ok()) return outcome.status();
        outcomes[i / seeds][i % seeds] = *std::move(outcome);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return outcomes;
}

template <typename Get>
Estimate MeanOf(const std::vector<Outcome>& outcomes, Get get) {
  std::vector<double> values;
  for (const Outcome& outcome : outcomes) values.push_back(get(outcome));
  return EstimateMean(values);
}
Estimate Throughput(const std::vector<Outcome>& outcomes) {
  return MeanOf(outcomes, [](const Outcome& o) { return o.run.tokens_per_s; });
}
Estimate Latency(const std::vector<Outcome>& outcomes) {
  return MeanOf(outcomes, [](const Outcome& o) { return o.run.mean_latency; });
}

// Every way of batching at shares of the load that the fluid benchmark says is the most.
struct LoadSweep {
  Load load;
  std::vector<double> shares;
  std::vector<Case> cases;  // by share, then kind
};

double FluidShare(const Load& load) {
  return wait::LoadOf(load.types);
}

LoadSweep Sweep(const Load& load) {
  LoadSweep sweep{load, {0.05, 0.15, 0.3, 0.5, 0.7, 0.85}, {}};
  for (const double share : sweep.shares) {
    for (const auto& kind : kKinds)
      sweep.cases.push_back({Scaled(load, share / FluidShare(load)), kind.kind});
  }
  // Margins multiply from segment to segment: near the limit there is little to spare.
  for (Case& c : sweep.cases) {
    if (FluidShare(c.load) > 0.6 || c.load.types.size() > 4) c.load.margin = 1.01;
  }
  return sweep;
}

void Report(const LoadSweep& sweep, const std::vector<std::vector<Outcome>>& outcomes, size_t offset,
            Findings& findings) {
  report::Table table;
  table.title = sweep.load.name;
  table.note =
      "Load: d1 times the tokens of all stages that arrive in a second; at 1 no batch size keeps up. Fluid: "
      "the long-run "
      "limit. A prompt counts as one token. Held: KV of all that has begun.";
  table.columns = {{"load", "", 2},
                   {"batching", ""},
                   {"throughput", "tokens/s"},
                   {"+-", "tokens/s", 2},
                   {"of the fluid's", "", 4},
                   {"latency", "s"},
                   {"+-", "s", 2},
                   {"TTFT", "s"},
                   {"held, most", "tokens"},
                   {"thrown out", ""},
                   {"thresholds", ""}};
  report::Chart throughput, latency;
  throughput.title = absl::StrCat("Throughput against the fluid benchmark: ", sweep.load.name);
  throughput.x = {"load", ""};
  throughput.y = {"share of the fluid throughput", ""};
  latency.title = absl::StrCat("Mean latency: ", sweep.load.name);
  latency.x = {"load", ""};
  latency.y = {"latency", "s", true};
  for (const auto& kind : kKinds) {
    throughput.series.push_back({kind.name});
    latency.series.push_back({kind.name});
  }
  for (size_t i = 0; i < sweep.cases.size(); ++i) {
    const std::vector<Outcome>& of = outcomes[offset + i];
    const Case& c = sweep.cases[i];
    const double fluid = core::FluidEquilibrium(c.load.types, kTime)->throughput;
    const double share = sweep.shares[i / std::size(kKinds)];
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row.emplace_back(share);
    row.emplace_back(std::string(kKinds[i % std::size(kKinds)].name));
    AddEstimate(row, Throughput(of));
    row.emplace_back(Throughput(of).mean / fluid);
    AddEstimate(row, Latency(of));
    row.emplace_back(MeanOf(of, [](const Outcome& o) { return o.run.mean_ttft; }).mean);
    row.emplace_back(
        MeanOf(of, [](const Outcome& o) { return static_cast<double>(o.run.peak_resident); }).mean);
    row.emplace_back(MeanOf(of, [](const Outcome& o) { return static_cast<double>(o.evictions); }).mean);
    row.emplace_back(of[0].thresholds);
    AddPoint(throughput.series[i % std::size(kKinds)], share, Throughput(of), 1 / fluid);
    AddPoint(latency.series[i % std::size(kKinds)], share, Latency(of));
  }
  findings.tables.push_back(std::move(table));
  findings.charts.push_back(std::move(throughput));
  findings.charts.push_back(std::move(latency));
}

std::vector<std::pair<std::string, std::string>> Parameters(const ExperimentContext& context,
                                                            double horizon) {
  return {{"iteration", absl::StrFormat("%g s + %g s per token", kTime.d0, kTime.d1)},
          {"memory of the rules that do not wait", absl::StrCat(kMemory, " tokens")},
          {"arrivals", absl::StrFormat("Poisson, for %g s", horizon)},
          {"seeds", absl::StrCat("1 to ", context.seeds)},
          {"intervals", "95 %, Student's t over the seeds"}};
}

// Heavy traffic: rates times zeta, iterations 1 / zeta as long.
absl::Status HeavyTraffic(const ExperimentContext& context, double horizon, Findings& findings) {
  const std::vector<double> zetas = {1, 2, 4, 8, 16, 32, 64};
  // Lengths known: two types; unknown: the four types of Nested WAIT.
  const std::vector<std::pair<Load, Kind>> kinds = {
      {Synthetic()[0], Kind::kWait}, {Synthetic()[0], Kind::kNested}, {Synthetic()[1], Kind::kNested}};
  std::vector<Case> cases;
  for (const double zeta : zetas) {
    for (const auto& [load, kind] : kinds) {
      cases.push_back({load, kind});
      cases.back().load.zeta = zeta;
    }
  }
  const auto outcomes = RunAll(context, cases, horizon);
  if (!outcomes.ok()) return outcomes.status();
  report::Table table;
  table.title = "Heavy traffic: rates times zeta, iterations 1 / zeta as long";
  report::Chart chart;
  chart.title = "Gap to the fluid benchmark in heavy traffic";
  chart.note = "1 - throughput / fluid throughput; the band is the 95 % interval over the seeds.";
  chart.x = {"zeta", "", true};
  chart.y = {"gap", "%"};
  table.note =
      absl::StrFormat("Gap: 1 - throughput / fluid throughput, over %g s from an empty worker on.", horizon);
  table.columns = {{"zeta", ""}};
  for (const auto& [load, kind] : kinds) {
    const std::string name =
        absl::StrCat(kKinds[static_cast<size_t>(kind)].name, ", ", load.types.size(), " types");
    table.columns.insert(
        table.columns.end(),
        {{absl::StrCat(name, ": gap"), "%"}, {"+-", "%", 2}, {absl::StrCat(name, ": latency"), "s"}});
    chart.series.push_back({name});
  }
  for (size_t z = 0; z < zetas.size(); ++z) {
    std::vector<report::Cell>& row = table.rows.emplace_back();
    row.emplace_back(zetas[z]);
    for (size_t k = 0; k < kinds.size(); ++k) {
      const double fluid = zetas[z] * core::FluidEquilibrium(kinds[k].first.types, kTime)->throughput;
      const auto& of = (*outcomes)[kinds.size() * z + k];
      const Estimate gap = MeanOf(of, [&](const Outcome& o) { return 1 - o.run.tokens_per_s / fluid; });
      AddEstimate(row, gap, 100);
      row.emplace_back(Latency(of).mean);
      AddPoint(chart.series[k], zetas[z], gap, 100);
    }
  }
  findings.charts.push_back(std::move(chart));
  findings.tables.push_back(std::move(table));
  return absl::OkStatus();
}

absl::StatusOr<Findings> Run(const ExperimentContext& context, const std::vector<Load>& loads) {
  const double horizon = std::max(4.0, kHorizon / context.shorten);
  std::vector<LoadSweep> sweeps;
  std::vector<Case> cases;
  for (const Load& load : loads) {
    sweeps.push_back(Sweep(load));
    cases.insert(cases.end(), sweeps.back().cases.begin(), sweeps.back().cases.end());
  }
  const auto outcomes = RunAll(context, cases, horizon);
  if (!outcomes.ok()) return outcomes.status();
  Findings findings;
  size_t offset = 0;
  for (const LoadSweep& sweep : sweeps) {
    Report(sweep, *outcomes, offset, findings);
    offset += sweep.cases.size();
  }
  findings.parameters = Parameters(context, horizon);
  findings.text = {
      "WAIT begins a batch when enough requests of a type wait, Nested WAIT when enough wait at the entry of "
      "a segment of "
      "lengths; the others run whatever is there. Waiting pays where an iteration costs much whatever is in "
      "it and memory "
      "is short; it costs latency where the load is light."};
  return findings;
}

}  // namespace

absl::StatusOr<Findings> WaitSynthetic(const ExperimentContext& context) {
  auto findings = Run(context, Synthetic());
  if (!findings.ok()) return findings;
  if (absl::Status status = HeavyTraffic(context, std::max(0.5, kHorizon / 20 / context.shorten), *findings);
      !status.ok())
    return status;
  return findings;
}

absl::StatusOr<Findings> WaitReal(const ExperimentContext& context) {
  return Run(context, {Real()});
}

}  // namespace bfio::sim
