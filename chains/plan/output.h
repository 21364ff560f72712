// Formats a plan as text for a terminal and as JSON. The output of bfio_plan. Threads: any, no state.
#pragma once

#include <string>

#include "chains/plan/planner.h"
#include "nlohmann/json.hpp"

namespace bfio::plan {

std::string PlanText(const Problem& problem, const Plan& plan);
nlohmann::ordered_json PlanJson(const Problem& problem, const Plan& plan);

}  // namespace bfio::plan
