// The cells of the scaling experiment and what was measured in them.
//
// Purpose: what scaling.cc runs and scaling_report.cc has printed. Threads: any, plain values.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_SCALING_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_SCALING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/experiment/experiment.h"
#include "tools/sim/experiment/overload_watch.h"
#include "tools/sim/experiment/rule.h"

namespace bfio::sim::scaling {

// Prompts are uniform on 1 .. kLargestPrompt; outputs kOutput tokens, or geometric with mean 1 / kEndRate.
inline constexpr int64_t kLargestPrompt = 100, kOutput = 20;
inline constexpr double kEndRate = 0.05;

struct Family {
  std::string name;
  int32_t theorem;
  std::string drift;
  bool geometric;
};

struct Cell {
  // An index into Study::families.
  size_t family;
  int32_t workers, batch;
  // FCFS is cheap and scatters: it runs for longer.
  int64_t warmup, fcfs_steps, steps, pool;
};

struct Study {
  std::vector<Family> families;
  // The first is FCFS.
  std::vector<Rule> rules;
  std::vector<Cell> cells;
  // By cell, then rule: of the run of seed 1.
  std::vector<std::shared_ptr<OverloadWatch>> watches;

  size_t At(size_t cell, size_t rule) const { return cell * rules.size() + rule; }
  // Cells of a family with this batch (over G), or this many workers (over B), in order.
  std::vector<size_t> OverWorkers(size_t family, int32_t batch) const;
  std::vector<size_t> OverBatch(size_t family, int32_t workers) const;
};

// What is said on paper about a cell, tokens: FCFS by the normal law and at least, BF-IO with H = 0 at most.
struct Theory {
  double normal_estimate, lower, upper;
};

inline constexpr char kImbalanceKey[] = "avg_imbalance_tokens";

// By seed; rule 0 is FCFS.
std::vector<double> Imbalances(const Study& study, const SeededRuns& runs, size_t cell, size_t rule);

// FCFS's imbalance over the rule's, by seed; nothing where the rule has none at all.
std::optional<std::vector<double>> Improvement(const Study& study, const SeededRuns& runs, size_t cell,
                                               size_t rule);

// scaling_tables.cc and scaling_charts.cc. `theory` is by cell. G and B: what is held fixed in the two
// sweeps.
void AddTables(const Study& study, const SeededRuns& runs, const std::vector<Theory>& theory,
               int32_t fixed_workers, int32_t fixed_batch, Findings& findings);
void AddCharts(const Study& study, const SeededRuns& runs, const std::vector<Theory>& theory,
               int32_t fixed_workers, int32_t fixed_batch, Findings& findings);

// Fills tables, charts and text.
absl::Status Report(const Study& study, const SeededRuns& runs, int32_t fixed_workers, int32_t fixed_batch,
                    Findings& findings);

}  // namespace bfio::sim::scaling

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_SCALING_H_
