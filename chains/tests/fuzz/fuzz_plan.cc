// The input files of bfio_plan: a pool and, after a NUL byte, a model; whatever is accepted can be planned.
#include <cmath>

#include "absl/strings/string_view.h"
#include "chains/plan/input.h"
#include "chains/plan/output.h"
#include "chains/plan/planner.h"
#include "tests/fuzz/fuzz.h"

namespace {

// Larger pools are valid too, but planning them is slow.
constexpr size_t kServers = 12;
constexpr int32_t kBlocks = 64;
constexpr int64_t kReserve = 200;

void PlanAndPrint(bfio::plan::Problem problem) {
  problem.demand = {0.2, 0.7};
  const auto plan = bfio::plan::MakePlan(problem);
  if (!plan.ok()) return;
  const auto& response = plan->response;
  bfio::fuzz::Check(std::isfinite(response.lower) && std::isfinite(response.upper), "bounds are finite");
  bfio::fuzz::Check(response.lower > 0 && response.lower <= response.upper * (1 + 1e-9),
                    "bounds are in order");
  const auto json = bfio::plan::PlanJson(problem, *plan);
  bfio::fuzz::Check(!json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).empty(),
                    "a plan is JSON");
  bfio::fuzz::Check(!bfio::plan::PlanText(problem, *plan).empty(), "and text");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text = bfio::fuzz::Text(data, size);
  const size_t end = text.find('\0');
  const auto model = bfio::plan::ParseModel(end == text.npos ? text : text.substr(end + 1), "model");
  if (!model.ok()) return 0;
  auto servers = bfio::plan::ParsePool(text.substr(0, end), "pool", *model);
  if (!servers.ok() || servers->size() > kServers || model->blocks > kBlocks) return 0;
  bfio::plan::Problem problem;
  problem.servers = *std::move(servers);
  problem.service = *model;
  if (bfio::core::LargestReserve(problem.servers, problem.service) <= kReserve)
    PlanAndPrint(std::move(problem));
  return 0;
}
