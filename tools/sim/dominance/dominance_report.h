// The dominance grid as a table and as JSON. Output only; dominance.h computes the verdicts. Times in
// milliseconds, waits in steps.
#ifndef BFIO_TOOLS_SIM_DOMINANCE_DOMINANCE_REPORT_H_
#define BFIO_TOOLS_SIM_DOMINANCE_DOMINANCE_REPORT_H_

#include <string>

#include "nlohmann/json_fwd.hpp"
#include "tools/sim/dominance/dominance.h"

namespace bfio::sim {

std::string DominanceHeader();
std::string DominanceLine(const Dominance& dominance, const DominanceCell& cell);
// How many cells were lost, singly and as means over seeds, and how often each baseline was the best.
std::string DominanceSummary(const Dominance& dominance);

// One object with the settings, all cells with their runs, and the counts.
nlohmann::ordered_json DominanceJson(const Dominance& dominance);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_DOMINANCE_DOMINANCE_REPORT_H_
