// What fig7 runs and keeps: power of every step, and the workers' shares of it.
//
// Purpose: between the runs and the tables and charts of fig7. Threads: each run writes to its own
// PowerWatched; the rest is read when all have ended. Watts, seconds.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_POWER_STUDY_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_POWER_STUDY_H_

#include <cstddef>
#include <iterator>
#include <vector>

#include "tools/report/table.h"
#include "tools/sim/experiment/experiment.h"
#include "tools/sim/experiment/rule.h"

namespace bfio::sim {

// Steps of the moving average.
inline constexpr size_t kPowerWindow = 50;

// The power laws, by their keys in a run's JSON.
struct PowerName {
  const char* energy_key;
  const char* name;
};

inline constexpr PowerName kPowers[] = {{"energy_j", "load ratio"},
                                        {"energy_by_mfu_j", "model-FLOPs utilisation"},
                                        {"energy_by_wait_j", "idle power at the barrier"}};
inline constexpr size_t kPowerCount = std::size(kPowers);

// What the paper prints; NaN: nothing.
struct PrintedPower {
  double energy_kj, from_w, to_w;
};

struct PowerPolicy {
  Rule rule;
  PrintedPower paper;
};

// One run, step by step.
struct PowerWatched {
  std::vector<double> end_s, seconds;
  // Watts of a GPU, mean over the group, by power law and step.
  std::vector<double> watts[kPowerCount];
  // By step and worker: L_g / max L, and the share of the step at work.
  std::vector<std::vector<float>> load_ratio, busy;
};

// The variants of policy i are 2 i (until the pool is empty) and 2 i + 1 (the whole work).
struct PowerStudy {
  std::vector<PowerPolicy> shown;
  std::vector<std::vector<PowerWatched>> watched;  // by policy and seed
  std::vector<Variant> variants;

  static size_t UntilEmpty(size_t policy) { return 2 * policy; }
  static size_t Whole(size_t policy) { return 2 * policy + 1; }
};

// Fills the study, which the runs of its variants write to.
void PlanPowerStudy(const ExperimentContext& context, PowerStudy& study);

// Steps until the pool is empty.
size_t CountedSteps(const SeededRuns& runs, size_t policy, size_t seed_index);
// The first `steps` of a run's.
std::vector<double> Counted(const std::vector<double>& samples, size_t steps);

// Energy and power until the pool is empty, energy of the whole work, time and tokens, utilisation by worker.
std::vector<report::Table> PowerTables(const PowerStudy& study, const SeededRuns& runs);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_POWER_STUDY_H_
