// The experiments by name.
//
// Purpose: the registry behind `bfio_sim NAME`. Each is defined in the file of its name in this folder.
// Threads: see experiment.h.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_EXPERIMENTS_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_EXPERIMENTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tools/sim/experiment/experiment.h"

namespace bfio::sim {

// BF-IO paper, Figures 1, 4, 5, 6, Table 1 and Figure 7 (with 2).
absl::StatusOr<Findings> Fig1(const ExperimentContext& context);
absl::StatusOr<Findings> Fig4(const ExperimentContext& context);
absl::StatusOr<Findings> Fig5(const ExperimentContext& context);
absl::StatusOr<Findings> Fig6(const ExperimentContext& context);
absl::StatusOr<Findings> Table1(const ExperimentContext& context);
absl::StatusOr<Findings> Fig7(const ExperimentContext& context);
// BF-IO paper, Theorems 1 to 3.
absl::StatusOr<Findings> Scaling(const ExperimentContext& context);
// "Online Scheduling for LLM Inference with KV Cache Constraints", Section 5.2.
absl::StatusOr<Findings> KvHigh(const ExperimentContext& context);
absl::StatusOr<Findings> KvLow(const ExperimentContext& context);
absl::StatusOr<Findings> KvAlpha(const ExperimentContext& context);
absl::StatusOr<Findings> KvBeta(const ExperimentContext& context);
absl::StatusOr<Findings> KvHindsight(const ExperimentContext& context);
absl::StatusOr<Findings> KvLengthsUnknown(const ExperimentContext& context);
// "Fluid-Based Online Scheduling under Memory Constraints", Section 5.
absl::StatusOr<Findings> WaitSynthetic(const ExperimentContext& context);
absl::StatusOr<Findings> WaitReal(const ExperimentContext& context);
absl::StatusOr<Findings> WaitOnline(const ExperimentContext& context);
absl::StatusOr<Findings> WaitCaps(const ExperimentContext& context);
// "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents", Figures 1 and 9, Section 4.
absl::StatusOr<Findings> BudgetSweep(const ExperimentContext& context);
absl::StatusOr<Findings> PrefillGroup(const ExperimentContext& context);
absl::StatusOr<Findings> Stability(const ExperimentContext& context);
absl::StatusOr<Findings> RybkoStolyarStudy(const ExperimentContext& context);
absl::StatusOr<Findings> ForkJoinStudy(const ExperimentContext& context);
absl::StatusOr<Findings> EnginesStudy(const ExperimentContext& context);
// Ours.
absl::StatusOr<Findings> Regimes(const ExperimentContext& context);
absl::StatusOr<Findings> Staleness(const ExperimentContext& context);
absl::StatusOr<Findings> PredictorWorth(const ExperimentContext& context);
absl::StatusOr<Findings> SpeedupBound(const ExperimentContext& context);
absl::StatusOr<Findings> KvTight(const ExperimentContext& context);

struct ExperimentInfo {
  // The subcommand.
  const char* name;
  const char* title;
  // One sentence for --help.
  const char* summary;
  // The workload when none is named, a built-in profile.
  const char* profile;
  absl::StatusOr<Findings> (*run)(const ExperimentContext& context);
};

// In the order --help lists them.
const std::vector<ExperimentInfo>& Experiments();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_EXPERIMENTS_H_
