// A policy with its settings, under the name that tables and charts give it.
//
// Purpose: experiments that compare policies list these. Threads: any, plain values.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_RULE_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_RULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/sim/experiment/experiment.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

struct Rule {
  std::string name;
  std::string policy;
  // bf_io only; empty: as in the options it is applied to.
  std::string objective;
  int32_t horizon = 0;
  double discount = 1;
  std::string lookahead = "none";
};

// The paper's own: J over H steps, every length known.
Rule PaperBfIo(int32_t horizon, double discount = 1);

// `options` decided by `rule`.
SimOptions WithRule(SimOptions options, const Rule& rule);

// The policies of --policy with the settings of the command line, or `own`.
std::vector<Rule> RulesOr(const ExperimentContext& context, std::vector<Rule> own);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_RULE_H_
