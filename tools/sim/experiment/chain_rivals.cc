#include "tools/sim/experiment/chain_rivals.h"

#include <numeric>
#include <utility>

#include "common/base/rng.h"

namespace bfio::sim {
namespace {

// What a PETALS server keeps for other things: 2 GiB.
constexpr double kPetalsKeptGb = 2.147;

}  // namespace

absl::StatusOr<std::vector<ServedJob>> ServeByPetals(const WideAreaPool& pool, const RivalSetting& setting,
                                                     absl::Span<const ChainJob> jobs, uint64_t seed) {
  Rng rng = Rng(seed).Fork(4);
  std::vector<int32_t> order(pool.servers.size());
  std::iota(order.begin(), order.end(), 0);
  for (size_t j = order.size(); j > 1; --j) std::swap(order[j - 1], order[rng.Below(j)]);
  RoutingRule rule = {
      .kind = RoutingRule::Kind::kPetals, .output_tokens = setting.job.output_tokens, .time = setting.time};
  for (const double round_trip : pool.round_trip)
    rule.hop_per_token.push_back(round_trip / 2 + kMessageOverhead);
  const core::PetalsOptions options = {kPetalsKeptGb, setting.petals_block_memory, pool.throughput};
  return ServeByRoutes(
      {pool.servers, setting.service, core::PetalsPlacement(pool.servers, setting.service, options, order)},
      rule, jobs);
}

absl::StatusOr<std::vector<ServedJob>> ServeByBprr(const WideAreaPool& pool, const RivalSetting& setting,
                                                   double rate, absl::Span<const ChainJob> jobs) {
  const RoutingRule rule = {.kind = RoutingRule::Kind::kWaitAware, .time = setting.time};
  core::BprrPlacement placement = core::PlaceByBprr(pool.servers, setting.service, rate);
  return ServeByRoutes({pool.servers, setting.service, std::move(placement.ranges)}, rule, jobs);
}

}  // namespace bfio::sim
