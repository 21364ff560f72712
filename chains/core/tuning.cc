#include "chains/core/tuning.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"

namespace bfio::core {
namespace {

constexpr double kNoTime = std::numeric_limits<double>::infinity();
constexpr int64_t kEveryReserve = 512, kStepShare = 64;

int64_t BlocksInPool(absl::Span<const ChainServer> servers, const ChainService& service, int64_t c) {
  int64_t blocks = 0;
  for (const ChainServer& server : servers) blocks += BlocksWithReserve(server, service, c);
  return blocks;
}

// The properties of a candidate that depend only on its chains and the demand, not on c and the placement.
ReserveCandidate Judge(absl::Span<const ServerChain> chains, double rate, const Demand& demand) {
  ReserveCandidate judged = {.chains = static_cast<int64_t>(chains.size()),
                             .capacity = TotalCapacity(chains),
                             .rate = rate,
                             .meets = demand.needed() <= rate,
                             .lower = kNoTime,
                             .upper = kNoTime};
  if (demand.rate < rate) {
    const Occupancy jobs = OccupancyBounds(Rates(chains), demand.rate);
    judged.lower = jobs.lower / demand.rate;
    judged.upper = jobs.upper / demand.rate;
  }
  return judged;
}

}  // namespace

ChainPlan PlanWithReserve(absl::Span<const ChainServer> servers, const ChainService& service, int64_t c,
                          const Demand& demand) {
  ChainPlan plan;
  plan.placement = GreedyPlacement(servers, service, c, demand);
  plan.chains = ComposeChains(servers, service, plan.placement.ranges);
  plan.rate = TotalRate(plan.chains);
  return plan;
}

int64_t LargestReserve(absl::Span<const ChainServer> servers, const ChainService& service) {
  double memory = 0;
  for (const ChainServer& server : servers) memory = std::max(memory, server.memory);
  return WholeUnits(memory - service.block_size, service.cache_size);
}

std::vector<ReserveCandidate> SweepReserve(absl::Span<const ChainServer> servers, const ChainService& service,
                                           const Demand& demand, const std::function<bool()>& go_on) {
  std::vector<ReserveCandidate> candidates;
  // Neighbouring c often give the same placement, and then the same chains.
  BlockRanges last;
  ReserveCandidate judged;
  const int64_t largest = LargestReserve(servers, service);
  for (int64_t c = 1; c <= largest; c += c < kEveryReserve ? 1 : c / kStepShare) {
    if (BlocksInPool(servers, service, c) < service.blocks || (go_on && !go_on())) break;
    BlockPlacement placement = GreedyPlacement(servers, service, c, demand);
    if (placement.ranges != last) {
      const std::vector<ServerChain> chains = ComposeChains(servers, service, placement.ranges);
      judged = Judge(chains, TotalRate(chains), demand);
    }
    judged.c = c;
    judged.disjoint_chains = static_cast<int64_t>(placement.chains.size());
    judged.disjoint_meets =
        !placement.chains.empty() && placement.rate_per_slot >= demand.needed() / static_cast<double>(c);
    candidates.push_back(judged);
    last = std::move(placement.ranges);
  }
  return candidates;
}

const ReserveCandidate* BestReserve(absl::Span<const ReserveCandidate> candidates) {
  const bool some_meet = std::any_of(candidates.begin(), candidates.end(),
                                     [](const ReserveCandidate& candidate) { return candidate.meets; });
  const ReserveCandidate* best = nullptr;
  double least = kNoTime;
  for (const ReserveCandidate& candidate : candidates) {
    if (some_meet && !candidate.meets) continue;
    if (!(candidate.lower < least)) continue;
    best = &candidate;
    least = candidate.lower;
  }
  return best;
}

absl::Status WhyImpossible(absl::Span<const ChainServer> servers, const ChainService& service,
                           const Demand& demand, absl::Span<const ReserveCandidate> candidates) {
  if (candidates.empty()) {
    const int64_t blocks = BlocksInPool(servers, service, 1);
    const int64_t missing = service.blocks - blocks;
    const double each = service.block_size + service.cache_size;
    return absl::FailedPreconditionError(absl::StrFormat(
        "memory: with cache for one job per block, the pool holds %d of %d blocks; memory for %d more blocks "
        "(%.4g GB) is needed",
        blocks, service.blocks, missing, static_cast<double>(missing) * each));
  }
  const ReserveCandidate* most = &candidates[0];
  for (const ReserveCandidate& candidate : candidates) {
    if (candidate.rate > most->rate) most = &candidate;
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "rate: the demand of %.4g jobs/s must be below the rate of the best composition, %.4g jobs/s "
      "(c = %d, %d jobs at once); the excess is %.4g jobs/s",
      demand.rate, most->rate, most->c, most->capacity, demand.rate - most->rate));
}

}  // namespace bfio::core
