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
// "Serving Chain-structured Jobs with Large Memory Footprints", Figures 3, 4, 5, 6 with 7, 8, and Table 1.
absl::StatusOr<Findings> ChainPlacement(const ExperimentContext& context);
absl::StatusOr<Findings> ChainCache(const ExperimentContext& context);
absl::StatusOr<Findings> ChainDispatch(const ExperimentContext& context);
absl::StatusOr<Findings> ChainTuning(const ExperimentContext& context);
absl::StatusOr<Findings> ChainOverall(const ExperimentContext& context);
absl::StatusOr<Findings> ChainTrace(const ExperimentContext& context);
// Ours.
absl::StatusOr<Findings> Regimes(const ExperimentContext& context);
absl::StatusOr<Findings> Staleness(const ExperimentContext& context);
absl::StatusOr<Findings> PredictorWorth(const ExperimentContext& context);
absl::StatusOr<Findings> SpeedupBound(const ExperimentContext& context);

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
