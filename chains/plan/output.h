// A plan as text for a terminal, as JSON and as a picture.
//
// Purpose: what bfio_plan prints and writes. Threads: any, no state.
#ifndef BFIO_CHAINS_PLAN_OUTPUT_H_
#define BFIO_CHAINS_PLAN_OUTPUT_H_

#include <string>
#include <vector>

#include "chains/plan/planner.h"
#include "nlohmann/json.hpp"

namespace bfio::plan {

std::string PlanText(const Problem& problem, const Plan& plan, const std::vector<Change>& changes);
// One line per demand; a line where c changes is marked.
std::string SweepText(const std::vector<SweepPoint>& points);

nlohmann::ordered_json PlanJson(const Problem& problem, const Plan& plan, const std::vector<Change>& changes);
nlohmann::ordered_json SweepJson(const std::vector<SweepPoint>& points);

// A line per demand; only the demand where none can be carried.
std::string SweepCsv(const std::vector<SweepPoint>& points);

// One row per server with the blocks it hosts, and through them the chains, fastest first, in colours: a
// whole <svg> file.
std::string PlanSvg(const Problem& problem, const Plan& plan);

}  // namespace bfio::plan

#endif  // BFIO_CHAINS_PLAN_OUTPUT_H_
