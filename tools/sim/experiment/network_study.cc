#include "tools/sim/experiment/network_study.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/sim/experiment/samples.h"

namespace bfio::sim {
namespace {

constexpr size_t kLinePoints = 400;

// What is kept of a run: the samples of hundreds would not fit.
struct Figures {
  double slope = 0, peak_growth = 0, peak = 0, agents = 0;
  // Mean and 99th percentile.
  struct Latency {
    double mean = 0, p99 = 0;
  };
  Latency latency;
  std::vector<Latency> types;
  std::vector<int64_t> tokens;
};

Figures::Latency LatencyOf(std::vector<double> latencies) {
  if (latencies.empty()) {
    return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  return {EstimateMean(latencies).mean, QuantileOf(std::move(latencies), 0.99)};
}

Figures FiguresOf(NetworkRun run, double sample_every, size_t types) {
  Figures figures;
  figures.slope = SecondHalfSlope(run.tokens, sample_every);
  figures.peak_growth = PeakGrowth(run.tokens, sample_every);
  figures.peak = static_cast<double>(run.peak_tokens);
  figures.agents = static_cast<double>(run.agents[run.agents.size() / 2]);
  std::vector<double> latencies;
  std::vector<std::vector<double>> by_type(types);
  for (const NetworkRun::Ended& agent : run.finished) {
    latencies.push_back(agent.latency);
    by_type[static_cast<size_t>(agent.type)].push_back(agent.latency);
  }
  figures.latency = LatencyOf(std::move(latencies));
  for (std::vector<double>& of : by_type) figures.types.push_back(LatencyOf(std::move(of)));
  figures.tokens = std::move(run.tokens);
  return figures;
}

}  // namespace

int64_t VerdictSeeds(const ExperimentContext& context) {
  return std::max(context.seeds, kLeastVerdictSeeds);
}

absl::StatusOr<std::vector<NetworkFigures>> RunNetworks(const ExperimentContext& context,
                                                        const std::vector<NetworkCase>& cases) {
  const auto seeds = static_cast<size_t>(VerdictSeeds(context));
  std::vector<Figures> runs(cases.size() * seeds);
  std::vector<std::string> names;
  for (const NetworkCase& c : cases) {
    for (size_t s = 1; s <= seeds; ++s) names.push_back(absl::StrCat(c.name, ", seed ", s));
  }
  const absl::Status status =
      context.runner->ForEach(names, [&](size_t i, const Runner::GoOn& go_on) -> absl::Status {
        const NetworkCase& c = cases[i / seeds];
        NetworkOptions options = c.options;
        options.seed = i % seeds + 1;
        options.go_on = go_on;
        absl::StatusOr<NetworkRun> run = RunNetwork(c.network, options);
        if (!run.ok()) return run.status();
        if (!go_on()) return absl::OkStatus();
        runs[i] = FiguresOf(*std::move(run), options.sample_every, c.network.types.size());
        if (options.seed > 1) runs[i].tokens.clear();
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  std::vector<NetworkFigures> all(cases.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    NetworkFigures& to = all[i / seeds];
    to.slopes.push_back(runs[i].slope);
    to.peak_growths.push_back(runs[i].peak_growth);
    to.peaks.push_back(runs[i].peak);
    to.agents.push_back(runs[i].agents);
    to.latency.push_back(runs[i].latency.mean);
    to.latency_p99.push_back(runs[i].latency.p99);
    to.type_latency.resize(runs[i].types.size());
    to.type_p99.resize(runs[i].types.size());
    for (size_t t = 0; t < runs[i].types.size(); ++t) {
      to.type_latency[t].push_back(runs[i].types[t].mean);
      to.type_p99[t].push_back(runs[i].types[t].p99);
    }
    if (i % seeds == 0) to.tokens = std::move(runs[i].tokens);
  }
  return all;
}

std::string VerdictText(const NetworkFigures& figures, double threshold) {
  const GrowthVerdict verdict = JudgeGrowth(figures.peak_growths, threshold);
  return verdict.kind == GrowthVerdict::kUndecided
             ? verdict.Name()
             : absl::StrCat(verdict.Name(), " (2^-", figures.peak_growths.size(), ")");
}

report::Series TokensLine(const std::string& name, const NetworkFigures& figures, double sample_every) {
  report::Series line;
  line.name = name;
  const size_t stride = std::max<size_t>(1, figures.tokens.size() / kLinePoints);
  for (size_t i = 0; i < figures.tokens.size(); i += stride) {
    line.x.push_back(static_cast<double>(i) * sample_every);
    line.y.push_back(static_cast<double>(figures.tokens[i]));
  }
  return line;
}

std::string VerdictNote(const ExperimentContext& context, const std::string& threshold) {
  const int64_t seeds = VerdictSeeds(context);
  return absl::StrCat(
      "Verdicts: a sign test over ", seeds,
      " independent runs, of each how far the largest number of waiting tokens is above the largest "
      "of the first tenth, per unit of time, against ",
      threshold,
      ". All above: grows; all below: bounded; else undecided. Were the median run on the other "
      "side, all would agree with probability at most 2^-",
      seeds, ", which is the rate of false alarms (tools/sim/network/growth.h).");
}

}  // namespace bfio::sim
