// Columns, cells and lines of the figures that a run's JSON holds.
//
// Purpose: tables and charts of the same figures over different variants, without a function for each.
// Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_COLUMNS_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_COLUMNS_H_

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tools/report/chart.h"
#include "tools/report/table.h"
#include "tools/sim/experiment/experiment.h"

namespace bfio::sim {

// A key of the run's JSON and how it is printed: the value times `scale` is in `unit`.
struct Metric {
  const char* key;
  const char* name;
  const char* unit;
  double scale = 1;
};

namespace metrics {
inline constexpr Metric kImbalance{"avg_imbalance_tokens", "imbalance", "10^4 tokens", 1e-4};
inline constexpr Metric kIdle{"idle_fraction", "idle fraction", "%", 100};
inline constexpr Metric kThroughput{"throughput_tokens_per_s", "throughput", "10^4 tokens/s", 1e-4};
inline constexpr Metric kStep{"step_s_mean", "step time", "ms", 1e3};
inline constexpr Metric kSlots{"slots_taken_fraction", "slots taken", "%", 100};
inline constexpr Metric kTtftP50{"ttft_s_p50", "TTFT p50", "s"};
inline constexpr Metric kTtftP99{"ttft_s_p99", "TTFT p99", "s"};
inline constexpr Metric kWaitMean{"wait_steps_mean", "mean wait", "steps"};
inline constexpr Metric kWaitP99{"wait_steps_p99", "p99 wait", "steps"};
inline constexpr Metric kWaitMax{"wait_steps_max", "longest wait", "steps"};
}  // namespace metrics

// An empty cell in a column of numbers.
inline constexpr double kEmpty = std::numeric_limits<double>::quiet_NaN();

// A column for each metric, and one for the half-width of its interval.
void AddColumns(report::Table& table, absl::Span<const Metric> metrics);
void AddCells(std::vector<report::Cell>& row, const SeededRuns& runs, size_t variant,
              absl::Span<const Metric> metrics);

// A line of a chart: variants[i] at the i-th x.
struct Line {
  std::string name;
  std::vector<size_t> variants;
  report::Series::Style style = report::Series::Style::kLine;
  bool strong = false;
  // When not empty, the line shows by how many per cent variants[i] differs from against[i], paired by seed.
  std::vector<size_t> against = {};
};

// `metric` over x, or its change.
report::Chart LineChart(const std::string& title, const report::Axis& x, absl::Span<const double> xs,
                        const Metric& metric, const SeededRuns& runs, absl::Span<const Line> lines);

// "Step time" of "step time": metrics' names open titles.
std::string Capital(const std::string& name);

// Steps to count in each run: --steps, or 3,000 where there is none, shortened, and `least` at least.
int64_t StepsOf(const ExperimentContext& context, int64_t least);

// Steps before that: --warmup, or the time in which five requests of mean length follow one another in a slot
// if that is more, shortened. Slots then hold requests of all ages.
int64_t WarmUpOf(const ExperimentContext& context, const Trace& trace);

// States both, of the runs of a workload.
void AddRunLength(Findings& findings, const Workload& workload, const SimOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_COLUMNS_H_
