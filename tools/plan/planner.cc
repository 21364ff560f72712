#include "tools/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio::plan {
namespace {

constexpr size_t kMostDemands = 1000;
// Beyond so many states the bounds must do.
constexpr int64_t kMostExactStates = 4'000'000;
// Times that differ by less are one speed.
constexpr double kSameTime = 1e-9;

using Kind = std::tuple<double, double, double>;
Kind KindOf(const core::ChainServer& server) {
  return {server.memory, server.communication, server.compute};
}

Plan PlanWith(const Problem& problem, int64_t c) {
  Plan plan;
  plan.chosen = core::PlanWithReserve(problem.servers, problem.service, c, problem.demand);
  plan.meets_target = problem.demand.needed() <= plan.chosen.rate;
  return plan;
}

// What is left at once when server j is gone.
void Lose(const Problem& problem, const Plan& plan, size_t j, Change& change) {
  core::Placement rest = plan.chosen.placement.ranges;
  rest[j] = {};
  const auto chains = core::ComposeChains(problem.servers, problem.service, rest);
  change.rate_at_once = core::TotalRate(chains);
  change.at_once = ExpectedResponse(chains, problem.demand.rate);
}

void PlanAnew(const Problem& problem, int64_t c, Change& change) {
  const core::ChainPlan plan = core::PlanWithReserve(problem.servers, problem.service, c, problem.demand);
  change.rate_planned = plan.rate;
  change.planned = ExpectedResponse(plan.chains, problem.demand.rate);
}

}  // namespace

std::optional<Response> ExpectedResponse(const std::vector<core::ServerChain>& chains, double demand) {
  if (core::TotalRate(chains) <= demand) return std::nullopt;
  const core::Occupancy jobs = core::OccupancyBounds(core::Rates(chains), demand);
  Response response = {jobs.lower / demand, jobs.upper / demand, std::nullopt};
  // Chains of one speed are one chain to the queue.
  std::vector<core::ChainRate> speeds;
  for (const core::ServerChain& chain : chains) {
    if (speeds.empty() || chain.time * speeds.back().rate > 1 + kSameTime)
      speeds.push_back({chain.rate(), 0});
    speeds.back().capacity += chain.capacity;
  }
  if (speeds.size() == 1) response.exact = response.lower;
  if (speeds.size() == 2 && (speeds[0].capacity + 1) * (speeds[1].capacity + 1) <= kMostExactStates)
    response.exact = core::TwoChainOccupancy(speeds[0], speeds[1], demand) / demand;
  return response;
}

absl::StatusOr<Plan> MakePlan(const Problem& problem) {
  int64_t c = problem.reserve;
  if (c == 0) {
    const auto candidates = core::SweepReserve(problem.servers, problem.service, problem.demand);
    const core::ReserveCandidate* best = core::BestReserve(candidates, problem.goal);
    // The surrogate is stricter than what can be served.
    if (best == nullptr) best = core::BestReserve(candidates, core::TuningGoal::kLowerBound);
    if (best == nullptr)
      return core::WhyImpossible(problem.servers, problem.service, problem.demand, candidates);
    c = best->c;
  } else if (c > core::LargestReserve(problem.servers, problem.service)) {
    return absl::InvalidArgumentError(absl::StrCat("a reserve of ", c,
                                                   " jobs per block is more than any server holds, ",
                                                   core::LargestReserve(problem.servers, problem.service)));
  }
  Plan plan = PlanWith(problem, c);
  const auto response = ExpectedResponse(plan.chosen.chains, problem.demand.rate);
  if (!response.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("with a reserve of ", c,
                                                      " jobs per block the pool carries ", plan.chosen.rate,
                                                      " jobs/s, the demand is ", problem.demand.rate));
  }
  plan.response = *response;
  return plan;
}

std::vector<Change> Changes(const Problem& problem, const Plan& plan) {
  std::vector<Change> changes;
  std::map<std::tuple<Kind, int32_t, int32_t>, size_t> lost;
  for (size_t j = 0; j < problem.servers.size(); ++j) {
    const core::BlockRange& range = plan.chosen.placement.ranges[j];
    if (range.count == 0) continue;
    const auto [at, is_new] =
        lost.try_emplace({KindOf(problem.servers[j]), range.first, range.count}, changes.size());
    if (!is_new) {
      ++changes[at->second].alike;
      continue;
    }
    Change& change = changes.emplace_back();
    change.what = absl::StrCat("lose ", problem.servers[j].name);
    Lose(problem, plan, j, change);
    Problem rest = problem;
    rest.servers.erase(rest.servers.begin() + static_cast<std::ptrdiff_t>(j));
    PlanAnew(rest, plan.c(), change);
  }
  std::map<Kind, size_t> added;
  for (const core::ChainServer& server : problem.servers) {
    const auto [at, is_new] = added.try_emplace(KindOf(server), changes.size());
    if (!is_new) {
      ++changes[at->second].alike;
      continue;
    }
    Change& change = changes.emplace_back();
    change.what = absl::StrCat("add another ", server.name);
    change.rate_at_once = plan.chosen.rate;
    change.at_once = plan.response;
    Problem more = problem;
    more.servers.push_back(server);
    PlanAnew(more, plan.c(), change);
  }
  return changes;
}

std::vector<SweepPoint> SweepDemand(Problem problem, const std::vector<double>& demands,
                                    const std::function<bool()>& go_on) {
  std::vector<SweepPoint> points;
  for (const double demand : demands) {
    if (go_on && !go_on()) break;
    problem.demand.rate = demand;
    absl::StatusOr<Plan> plan = MakePlan(problem);
    points.push_back({demand, std::nullopt});
    if (plan.ok()) points.back().plan = *std::move(plan);
  }
  return points;
}

absl::StatusOr<std::vector<double>> ParseDemands(absl::string_view text) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("--demand=", text, ": ", why));
  };
  const bool range = absl::StrContains(text, ':');
  std::vector<double> numbers;
  for (const absl::string_view part : absl::StrSplit(text, range ? ':' : ',')) {
    if (!absl::SimpleAtod(part, &numbers.emplace_back()) || !std::isfinite(numbers.back()) ||
        numbers.back() <= 0)
      return wrong(absl::StrCat("'", part, "' is no number above 0"));
    if (numbers.size() > kMostDemands) return wrong("more than 1,000 demands");
  }
  if (!range) {
    if (!std::is_sorted(numbers.begin(), numbers.end())) return wrong("demands must ascend");
    return numbers;
  }
  if (numbers.size() != 3 || numbers[0] > numbers[1]) return wrong("a range is FROM:TO:STEP");
  const double steps = std::floor((numbers[1] - numbers[0]) / numbers[2] + 1e-9);
  if (steps >= static_cast<double>(kMostDemands)) return wrong("more than 1,000 demands");
  std::vector<double> demands;
  for (double k = 0; k <= steps; ++k) demands.push_back(numbers[0] + k * numbers[2]);
  return demands;
}

}  // namespace bfio::plan
