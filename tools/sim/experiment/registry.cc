#include "tools/sim/experiment/experiments.h"

namespace bfio::sim {

const std::vector<ExperimentInfo>& Experiments() {
  static const auto* const kExperiments = new std::vector<ExperimentInfo>{
      {"table1", "Table 1 of the BF-IO paper", "the paper's comparison of policies, its numbers beside ours",
       "burstgpt", Table1},
  };
  return *kExperiments;
}

}  // namespace bfio::sim
