#include "research/chains/rivals.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/rng.h"

namespace bfio::sim {
namespace {

// Memory that a PETALS server keeps for other purposes: 2 GiB.
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
  PetalsOptions options = {kPetalsKeptGb, setting.petals_block_memory, pool.throughput};
  for (PetalsThroughput& of : options.throughput) {
    if (!setting.petals_slices) of.most_blocks = 0;
  }
  core::BlockRanges placement = PetalsPlacement(pool.servers, setting.service, options, order);
  std::vector<core::ChainServer> servers = pool.servers;
  for (size_t j = 0; setting.petals_sessions > 0 && j < servers.size(); ++j) {
    const core::ChainService& of = setting.service;
    const double used =
        placement[j].count * (of.block_size + static_cast<double>(setting.petals_sessions) * of.cache_size);
    servers[j].memory = std::min(servers[j].memory, used);
  }
  return ServeByRoutes({servers, setting.service, std::move(placement)}, rule, jobs);
}

absl::StatusOr<std::vector<ServedJob>> ServeByBprr(const WideAreaPool& pool, const RivalSetting& setting,
                                                   double rate, absl::Span<const ChainJob> jobs) {
  const RoutingRule rule = {.kind = RoutingRule::Kind::kWaitAware, .time = setting.time};
  BprrPlacement placement = PlaceByBprr(pool.servers, setting.service, rate);
  return ServeByRoutes({pool.servers, setting.service, std::move(placement.ranges)}, rule, jobs);
}

}  // namespace bfio::sim
