#include "research/chains/runs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "chains/core/tuning.h"
#include "common/base/rng.h"
#include "research/chains/dispatcher.h"
#include "research/chains/response_bound.h"
#include "research/chains/rivals.h"

namespace bfio::sim {
namespace {

using Json = nlohmann::ordered_json;

// BLOOM-176B's block in NF4 by PETALS' formula, with the cache of 4,096 tokens for one session.
constexpr double kBloomPetalsBlockGb = 2466437120 * 0.53125 * 1.01 * 1e-9 + 2.0 * 14336 * 4096 * 2 * 1e-9;

WideAreaPool PoolOf(const PoolRun& run) {
  return DrawPool(run.rtts, run.servers, run.fast, run.seed);
}

core::Demand DemandOf(const PoolRun& run) {
  return run.load > 0 ? core::Demand{} : core::Demand{run.demand, run.target_load, run.use_all};
}

Json Head(const PoolRun& run) {
  return {{"seed", run.seed}, {"servers", run.servers}, {"fast", run.fast}};
}

// c K(c) if the demand is met.
Json Surrogate(const core::BlockPlacement& placement) {
  if (!placement.meets_demand) return nullptr;
  return placement.reserved * static_cast<int64_t>(placement.chains.size());
}

// nullopt if the chains do not carry the rate.
std::optional<MeanTimes> Simulate(const std::vector<core::ServerChain>& chains, core::ChainDispatcher& rule,
                                  const PoolRun& run, double rate) {
  if (core::TotalRate(chains) <= rate) return std::nullopt;
  return MeansOf(ServeOnChains(core::Rates(chains), rule, PoissonJobs(rate, run.jobs, run.seed)));
}

void AddTimes(const std::optional<MeanTimes>& times, Json& out) {
  out["response_s"] = times.has_value() ? Json(times->response) : Json(nullptr);
  out["wait_s"] = times.has_value() ? Json(times->wait) : Json(nullptr);
  out["service_s"] = times.has_value() ? Json(times->service) : Json(nullptr);
}

absl::StatusOr<Json> ServeComposed(const PoolRun& run, const std::string& rule) {
  auto dispatcher = core::MakeChainDispatcher(rule, run.seed);
  if (!dispatcher.ok()) return dispatcher.status();
  const WideAreaPool pool = PoolOf(run);
  const core::Demand demand = DemandOf(run);
  Json out = Head(run);
  out["rule"] = rule;
  int64_t c = run.reserve;
  if (c == 0) {
    const auto sweep = core::SweepReserve(pool.servers, BloomService(), demand);
    const core::ReserveCandidate* best = core::BestReserve(sweep);
    if (best == nullptr) {
      AddTimes(std::nullopt, out);
      return out;
    }
    c = best->c;
  }
  const core::ChainPlan plan = core::PlanWithReserve(pool.servers, BloomService(), c, demand);
  const double rate = run.load > 0 ? run.load * plan.rate : run.demand;
  out["c"] = c;
  out["jobs_per_s"] = rate;
  const auto times = Simulate(plan.chains, **dispatcher, run, rate);
  AddTimes(times, out);
  if (times.has_value()) {
    const core::Occupancy bounds = core::OccupancyBounds(core::Rates(plan.chains), rate);
    out["lower_s"] = bounds.lower / rate;
    out["upper_s"] = bounds.upper / rate;
    out["least_s"] = LeastResponse(pool.servers, BloomService(), rate);
  }
  return out;
}

}  // namespace

MeanTimes MeansOf(absl::Span<const ServedJob> jobs) {
  MeanTimes means;
  const size_t first = jobs.size() / 10;
  for (size_t i = first; i < jobs.size(); ++i) {
    means.wait += jobs[i].wait;
    means.service += jobs[i].service;
  }
  const auto count = static_cast<double>(jobs.size() - first);
  means.wait /= count;
  means.service /= count;
  means.response = means.wait + means.service;
  return means;
}

Json RunPlacement(const PoolRun& run, int64_t orders) {
  const WideAreaPool pool = PoolOf(run);
  const core::Demand demand = {run.demand, run.target_load};
  Json out = Head(run);
  out["gbp_cr"] = Surrogate(core::GreedyPlacement(pool.servers, BloomService(), run.reserve, demand));
  Rng rng = Rng(run.seed).Fork(3);
  std::vector<int32_t> order(pool.servers.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<int64_t> random;
  for (int64_t i = 0; i < orders; ++i) {
    for (size_t j = order.size(); j > 1; --j) std::swap(order[j - 1], order[rng.Below(j)]);
    const Json value =
        Surrogate(core::PlaceInOrder(pool.servers, BloomService(), run.reserve, demand, order));
    if (!value.is_null()) random.push_back(value.get<int64_t>());
  }
  std::sort(random.begin(), random.end());
  out["random"] = random;
  return out;
}

Json RunChains(const PoolRun& run) {
  const WideAreaPool pool = PoolOf(run);
  const core::ChainPlan plan = core::PlanWithReserve(pool.servers, BloomService(), run.reserve, {});
  Json out = Head(run);
  out["slots"] = core::AllCacheSlots(pool.servers, BloomService(), plan.placement.ranges);
  out["reserved"] = plan.placement.reserved;
  out["disjoint_s"] = Json::array();
  for (const core::DisjointChain& chain : plan.placement.chains) out["disjoint_s"].push_back(chain.time);
  out["chains"] = Json::array();
  for (const core::ServerChain& chain : plan.chains) {
    Json& one = out["chains"].emplace_back(Json{{"time_s", chain.time}, {"capacity", chain.capacity}});
    for (const core::ChainHop& hop : chain.hops) one["hops"].push_back({hop.server, hop.range.count});
  }
  return out;
}

absl::StatusOr<Json> RunServe(const PoolRun& run, const std::string& system, const std::string& rule) {
  if (system == "composed") return ServeComposed(run, rule);
  if (system != "petals" && system != "petals_slices" && system != "bprr") {
    return absl::InvalidArgumentError(
        absl::StrCat("system '", system, "' is unknown, choose composed, petals, petals_slices or bprr"));
  }
  const WideAreaPool pool = PoolOf(run);
  const RivalSetting setting = {.service = BloomService(),
                                .job = kBloomJob,
                                .petals_block_memory = kBloomPetalsBlockGb,
                                .petals_slices = system == "petals_slices"};
  const std::vector<ChainJob> jobs = PoissonJobs(run.demand, run.jobs, run.seed);
  const auto served = system == "bprr" ? ServeByBprr(pool, setting, run.demand, jobs)
                                       : ServeByPetals(pool, setting, jobs, run.seed);
  Json out = Head(run);
  out["jobs_per_s"] = run.demand;
  AddTimes(served.ok() ? std::optional(MeansOf(*served)) : std::nullopt, out);
  out["least_s"] = LeastResponse(pool.servers, setting.service, run.demand);
  return out;
}

Json RunTuning(const PoolRun& run) {
  const WideAreaPool pool = PoolOf(run);
  const core::Demand demand = {run.demand, run.target_load};
  const auto candidates = core::SweepReserve(pool.servers, BloomService(), demand);
  Json out = Head(run);
  out["jobs_per_s"] = run.demand;
  Json& by_c = out["candidates"] = Json::array();
  const auto jffc = *core::MakeChainDispatcher("jffc", run.seed);
  for (const core::ReserveCandidate& candidate : candidates) {
    Json& one = by_c.emplace_back();
    one["c"] = candidate.c;
    one["disjoint_chains"] = candidate.disjoint_chains;
    one["surrogate"] = candidate.disjoint_meets ? Json(candidate.surrogate()) : Json(nullptr);
    one["meets"] = candidate.meets;
    one["lower_s"] = candidate.lower;
    one["upper_s"] = candidate.upper;
    // The same jobs are simulated for every c.
    std::optional<MeanTimes> times;
    if (candidate.meets) {
      const auto plan = core::PlanWithReserve(pool.servers, BloomService(), candidate.c, demand);
      times = Simulate(plan.chains, *jffc, run, run.demand);
    }
    one["response_s"] = times.has_value() ? Json(times->response) : Json(nullptr);
  }
  return out;
}

}  // namespace bfio::sim
