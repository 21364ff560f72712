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
// "Serving Chain-structured Jobs with Large Memory Footprints", Figures 3, 4, 5, 6 with 7, 8, and Table 1.
absl::StatusOr<Findings> ChainPlacement(const ExperimentContext& context);
absl::StatusOr<Findings> ChainCache(const ExperimentContext& context);
absl::StatusOr<Findings> ChainDispatch(const ExperimentContext& context);
absl::StatusOr<Findings> ChainTuning(const ExperimentContext& context);
absl::StatusOr<Findings> ChainOverall(const ExperimentContext& context);
absl::StatusOr<Findings> ChainTrace(const ExperimentContext& context);
// Ours.
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
