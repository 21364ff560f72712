// What fig1 keeps of its runs, and the charts of it.
//
// Purpose: between the runs of fig1 and its page. Threads: each run writes to its own seed's entry; the rest
// is read when all have ended. Idle shares in percent, loads in tokens.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_IDLE_CHARTS_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_IDLE_CHARTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/report/chart.h"
#include "tools/sim/experiment/experiment.h"
#include "tools/sim/experiment/rule.h"
#include "tools/sim/experiment/samples.h"

namespace bfio::sim {

// Of the paper's trace, percent.
inline constexpr double kPaperIdleMean = 40, kPaperIdleMedian = 41;

// Of one policy on one workload.
struct IdleWatched {
  size_t workload = 0;
  Rule rule;
  // Percent by step, for each seed.
  std::vector<std::vector<double>> idle;
  // Of seed 1 and the first steps counted: by step, then worker.
  std::vector<std::vector<int64_t>> loads;

  std::vector<double> AllSeeds() const {
    std::vector<double> all;
    for (const auto& one : idle) all.insert(all.end(), one.begin(), one.end());
    return all;
  }
  Estimate OverSeeds(double quantile) const {
    std::vector<double> values;
    for (const auto& one : idle) values.push_back(QuantileOf(one, quantile));
    return EstimateMean(values);
  }
};

// The loads of the first, the traces of each workload, the histogram and the cumulative curves of all.
std::vector<report::Chart> IdleCharts(const ExperimentContext& context, const std::vector<IdleWatched>& all);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_IDLE_CHARTS_H_
