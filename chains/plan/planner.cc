#include "chains/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"

namespace bfio::plan {
namespace {

// With more states only the bounds are computed.
constexpr int64_t kMostExactStates = 4'000'000;
// Times with a smaller relative difference count as equal.
constexpr double kSameTime = 1e-9;

using Kind = std::tuple<double, double, double>;
Kind KindOf(const core::ChainServer& server) {
  return {server.memory, server.communication, server.compute};
}

size_t Kinds(const Problem& problem) {
  std::set<Kind> kinds;
  for (const core::ChainServer& server : problem.servers) kinds.insert(KindOf(server));
  return kinds.size();
}

Plan PlanWith(const Problem& problem, int64_t c) {
  Plan plan;
  plan.chosen = core::PlanWithReserve(problem.servers, problem.service, c, problem.demand);
  plan.meets_target = problem.demand.needed() <= plan.chosen.rate;
  return plan;
}

// The capacity that remains at once when server j is lost.
void Lose(const Problem& problem, const Plan& plan, size_t j, Change& change) {
  core::BlockRanges rest = plan.chosen.placement.ranges;
  rest[j] = {};
  const auto chains = core::ComposeChains(problem.servers, problem.service, rest);
  change.rate_at_once = core::TotalRate(chains);
  change.at_once = ExpectedResponse(chains, problem.demand.rate);
}

using GoOn = std::function<bool()>;
bool Stopped(const GoOn& go_on) {
  return go_on && !go_on();
}

// Values of c that are tried first when a pool has changed by one server, relative to the present c.
constexpr double kNearby[] = {1, 0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 1.03, 1.1, 1.25};

// With more kinds of servers only the present c is tried; otherwise hundreds of changes would take many
// seconds.
constexpr size_t kManyKinds = 40;

std::optional<Plan> BestNearby(const Problem& problem, int64_t present) {
  const int64_t largest = core::LargestReserve(problem.servers, problem.service);
  std::optional<Plan> best;
  int64_t last = 0;
  const size_t tries = Kinds(problem) > kManyKinds ? 1 : std::size(kNearby);
  for (const double share : absl::MakeConstSpan(kNearby).first(tries)) {
    const int64_t c =
        problem.reserve > 0 ? problem.reserve : std::llround(share * static_cast<double>(present));
    if (c < 1 || c > largest || c == last) continue;
    last = c;
    Plan plan = PlanWith(problem, c);
    const auto response = ExpectedResponse(plan.chosen.chains, problem.demand.rate);
    if (!response.has_value()) continue;
    plan.response = *response;
    const bool better = !best.has_value() || (plan.meets_target != best->meets_target
                                                  ? plan.meets_target
                                                  : plan.response.lower < best->response.lower);
    if (better) best = std::move(plan);
  }
  return best;
}

void PlanAnew(const Problem& problem, int64_t present, const GoOn& go_on, Change& change) {
  std::optional<Plan> plan = BestNearby(problem, present);
  if (!plan.has_value() && problem.reserve == 0) {
    absl::StatusOr<Plan> any = MakePlan(problem, go_on);
    if (any.ok()) plan = *std::move(any);
  }
  if (!plan.has_value()) return;
  change.c_planned = plan->c();
  change.rate_planned = plan->chosen.rate;
  change.planned = plan->response;
}

// The error when the reserve was given and the pool does not carry the demand with it.
absl::Status WhyNotWith(const Problem& problem, int64_t c, double rate) {
  int64_t blocks = 0;
  for (const core::ChainServer& server : problem.servers)
    blocks += core::BlocksWithReserve(server, problem.service, c);
  const int64_t missing = problem.service.blocks - blocks;
  if (missing > 0) {
    const double each = problem.service.block_size + static_cast<double>(c) * problem.service.cache_size;
    return absl::FailedPreconditionError(
        absl::StrFormat("memory: with a reserve of %d jobs per block the pool holds %d of %d blocks; add "
                        "memory for %d more blocks "
                        "(%.4g GB) or lower --reserve",
                        c, blocks, problem.service.blocks, missing, static_cast<double>(missing) * each));
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "rate: with a reserve of %d jobs per block the pool carries %.4g jobs/s; the demand of %.4g jobs/s "
      "exceeds this by %.4g jobs/s",
      c, rate, problem.demand.rate, problem.demand.rate - rate));
}

}  // namespace

std::optional<Response> ExpectedResponse(const std::vector<core::ServerChain>& chains, double demand) {
  if (core::TotalRate(chains) <= demand) return std::nullopt;
  const core::Occupancy jobs = core::OccupancyBounds(core::Rates(chains), demand);
  Response response = {jobs.lower / demand, jobs.upper / demand, std::nullopt};
  // For the queueing model, chains with equal speed are one chain.
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

absl::StatusOr<Plan> MakePlan(const Problem& problem, const std::function<bool()>& go_on) {
  int64_t c = problem.reserve;
  if (c == 0) {
    const auto candidates = core::SweepReserve(problem.servers, problem.service, problem.demand, go_on);
    if (Stopped(go_on)) return absl::CancelledError("interrupted");
    const core::ReserveCandidate* best = core::BestReserve(candidates);
    if (best == nullptr)
      return core::WhyImpossible(problem.servers, problem.service, problem.demand, candidates);
    c = best->c;
  } else if (c > core::LargestReserve(problem.servers, problem.service)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a reserve of ", c, " jobs per block does not fit on any server; the largest that fits is ",
        core::LargestReserve(problem.servers, problem.service)));
  }
  Plan plan = PlanWith(problem, c);
  const auto response = ExpectedResponse(plan.chosen.chains, problem.demand.rate);
  if (!response.has_value()) return WhyNotWith(problem, c, plan.chosen.rate);
  plan.response = *response;
  return plan;
}

absl::StatusOr<std::vector<Change>> Changes(const Problem& problem, const Plan& plan,
                                            const std::function<bool()>& go_on) {
  std::vector<Change> changes;
  // The position of a server's blocks affects only the response at once.
  std::map<Kind, Change> planned_without;
  std::map<std::tuple<Kind, int32_t, int32_t>, size_t> lost;
  for (size_t j = 0; j < problem.servers.size(); ++j) {
    const BlockRange& range = plan.chosen.placement.ranges[j];
    if (range.count == 0) continue;
    const auto [at, is_new] =
        lost.try_emplace({KindOf(problem.servers[j]), range.first, range.count}, changes.size());
    if (!is_new) {
      ++changes[at->second].alike;
      continue;
    }
    if (Stopped(go_on)) return absl::CancelledError("interrupted");
    Change& change = changes.emplace_back();
    const auto [planned, first] = planned_without.try_emplace(KindOf(problem.servers[j]));
    if (first) {
      Problem rest = problem;
      rest.servers.erase(rest.servers.begin() + static_cast<std::ptrdiff_t>(j));
      if (!rest.servers.empty()) PlanAnew(rest, plan.c(), go_on, planned->second);
    }
    change = planned->second;
    change.what = absl::StrCat("lose ", problem.servers[j].name);
    Lose(problem, plan, j, change);
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
    if (Stopped(go_on)) return absl::CancelledError("interrupted");
    Problem more = problem;
    more.servers.push_back(server);
    PlanAnew(more, plan.c(), go_on, change);
  }
  if (Stopped(go_on)) return absl::CancelledError("interrupted");
  return changes;
}

}  // namespace bfio::plan
