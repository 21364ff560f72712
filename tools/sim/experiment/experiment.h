// An experiment: many runs, and what they show as tables and charts.
//
// Purpose: the one interface between the experiments (one file each in this folder) and the command that runs
// them and writes their CSV, JSON and HTML. To add one: write `absl::StatusOr<Findings> MyExperiment(const
// ExperimentContext&)` in a file of its own, declare it in experiments.h and add it to registry.cc.
// Threads: an experiment is called on one thread; the runner it uses has its own. Deterministic for its
// seeds.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_EXPERIMENT_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_EXPERIMENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/workload/trace.h"
#include "tools/report/chart.h"
#include "tools/report/table.h"
#include "tools/sim/experiment/estimate.h"
#include "tools/sim/experiment/runner.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

// A workload by name, as read: experiments rotate it or draw from it by seed.
struct Workload {
  std::string name;
  std::shared_ptr<const Trace> trace;
};

struct ExperimentContext {
  // What the command line says about a run. Experiments take G, B, cost, mode and so on from here and set
  // what they vary themselves.
  SimOptions base;
  // --workers was given: an experiment with a size of its own does not put it in its place.
  bool workers_given = false;
  // --policy; empty: the experiment's own choice.
  std::vector<std::string> policies;
  // --trace and --profile, at least one.
  std::vector<Workload> workloads;
  // Seeds 1 .. seeds.
  int64_t seeds = 5;
  // Steps or requests per run are divided by this: 1 for figures worth printing, more for a quick look.
  double shorten = 1;
  const Runner* runner = nullptr;

  // `value` / shorten, at least `least`.
  int64_t Shortened(int64_t value, int64_t least) const;
  // The policies asked for, or `own`.
  std::vector<std::string> PoliciesOr(std::vector<std::string> own) const;
};

// What an experiment found.
struct Findings {
  // Set by the command from the registry.
  std::string name;
  std::string title;
  // What was asked and what came out, a paragraph each.
  std::vector<std::string> text;
  // Everything needed to repeat it: (what, value).
  std::vector<std::pair<std::string, std::string>> parameters;
  std::vector<report::Table> tables;
  std::vector<report::Chart> charts;
};

// Runs of one variant over the seeds.
struct Variant {
  // Unique within one call of RunSeeds.
  std::string name;
  // The seed is set for each run.
  SimOptions options;
  // The workload for a seed.
  std::function<std::shared_ptr<const Trace>(uint64_t seed)> trace;
  // Sees every step of the runs of seed 1; may be empty.
  StepTap tap = {};
  // Makes a tap for each seed's run, in place of `tap`; may be empty. No two of them share what they write.
  std::function<StepTap(uint64_t seed)> tap_of_seed = {};
};

// Shared and never changed, so a copy is cheap. (Behind a pointer, so that only those who look into a run's
// JSON compile it.)
class SeededRuns {
 public:
  // By variant, in the order given, and seed.
  explicit SeededRuns(std::vector<std::vector<RunJson>> runs);

  size_t variants() const;
  const RunJson& run(size_t variant, size_t seed_index) const;
  // The values of one key of the run's JSON, by seed.
  std::vector<double> Values(size_t variant, const std::string& key) const;
  Estimate Mean(size_t variant, const std::string& key) const;
  // Of a variant to another, paired by seed.
  Estimate Ratio(size_t variant, size_t base, const std::string& key) const;

 private:
  std::shared_ptr<const std::vector<std::vector<RunJson>>> runs_;
};

// Runs every variant with every seed of the context, over all threads.
absl::StatusOr<SeededRuns> RunSeeds(const ExperimentContext& context, const std::vector<Variant>& variants);

using TraceOfSeed = std::function<std::shared_ptr<const Trace>(uint64_t seed)>;

// Makes a seed's workload once, however many variants ask.
TraceOfSeed OncePerSeed(std::function<Trace(uint64_t seed)> make);

// Workloads by seed, made once and shared by the variants: rows drawn with replacement (`requests` of them),
// or the trace from another start.
TraceOfSeed DrawnBySeed(const Workload& workload, int64_t requests);
TraceOfSeed RotatedBySeed(const Workload& workload);

// Cells of a table: mean and half-width as two numbers, for two columns.
void AddEstimate(std::vector<report::Cell>& row, const Estimate& estimate, double scale = 1);
// Appends a point with its interval to a series.
void AddPoint(report::Series& series, double x, const Estimate& estimate, double scale = 1);

// The parameters every experiment states: G, B, cost, seeds, steps.
std::vector<std::pair<std::string, std::string>> CommonParameters(const ExperimentContext& context);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_EXPERIMENT_H_
