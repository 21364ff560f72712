#include "chains/core/server_pool.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace bfio::core {
namespace {

// Tolerance for a quotient that rounding has reduced below a whole number.
constexpr double kForgiven = 1e-9;

bool Positive(double value) {
  return std::isfinite(value) && value > 0;
}

bool NotNegative(double value) {
  return std::isfinite(value) && value >= 0;
}

bool IsTime(double value) {
  return value >= 0 && value <= kLongestTime;
}

}  // namespace

int64_t WholeUnits(double amount, double unit) {
  const double units = std::floor(amount / unit + kForgiven);
  if (!(units > 0)) return 0;
  return units < static_cast<double>(kMostSlots) ? static_cast<int64_t>(units) : kMostSlots;
}

int64_t CacheSlots(const ChainServer& server, const ChainService& service, const BlockRange& range) {
  if (range.count == 0) return 0;
  return WholeUnits(server.memory - service.block_size * range.count, service.cache_size);
}

absl::Status CheckPool(absl::Span<const ChainServer> servers, const ChainService& service) {
  if (service.blocks < 1 || service.blocks > kMostBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("a model must have 1 to ", kMostBlocks, " blocks, not ", service.blocks));
  }
  if (!Positive(service.block_size) || !Positive(service.cache_size)) {
    return absl::InvalidArgumentError(absl::StrCat("the sizes of a block (", service.block_size,
                                                   ") and of its cache per job (", service.cache_size,
                                                   ") must be above 0"));
  }
  if (servers.empty() || servers.size() > kMostServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pool must have 1 to ", kMostServers, " servers, not ", servers.size()));
  }
  for (size_t j = 0; j < servers.size(); ++j) {
    const ChainServer& server = servers[j];
    const auto wrong = [&](const char* field, double value, const char* rule) {
      return absl::InvalidArgumentError(
          absl::StrCat("server ", j, " ('", server.name, "'): ", field, " is ", value, "; ", rule));
    };
    if (!NotNegative(server.memory))
      return wrong("memory", server.memory, "it must be a finite number of at least 0");
    if (server.memory / service.cache_size > static_cast<double>(kMostSlots)) {
      return absl::InvalidArgumentError(absl::StrCat("server ", j, " ('", server.name, "'): memory ",
                                                     server.memory, " holds more than ", kMostSlots,
                                                     " caches of size ", service.cache_size));
    }
    if (!IsTime(server.communication))
      return wrong("communication time", server.communication, "it must be within 0..1e9 s");
    if (!IsTime(server.compute)) return wrong("time per block", server.compute, "it must be within 0..1e9 s");
    if (server.communication + server.compute < kShortestTime)
      return wrong("time per block", server.compute,
                   "with the communication time it must be at least 1e-9 s");
  }
  return absl::OkStatus();
}

int32_t BlocksWithReserve(const ChainServer& server, const ChainService& service, int64_t c) {
  const double with_cache = service.block_size + service.cache_size * static_cast<double>(c);
  return static_cast<int32_t>(std::min<int64_t>(WholeUnits(server.memory, with_cache), service.blocks));
}

BlockPlacement PlaceInOrder(absl::Span<const ChainServer> servers, const ChainService& service,
                            int64_t reserved, const Demand& demand, absl::Span<const int32_t> order) {
  BlockPlacement placement;
  placement.reserved = reserved;
  placement.ranges.resize(servers.size());
  const double needed = demand.needed() / static_cast<double>(reserved);
  DisjointChain chain;
  int32_t covered = 0;
  for (const int32_t j : order) {
    const int32_t count = BlocksWithReserve(servers[j], service, reserved);
    if (count == 0) continue;
    // The last server of a chain also hosts as much as it can: the overlap serves other chains.
    placement.ranges[j] = {std::min(covered, service.blocks - count), count};
    chain.servers.push_back(j);
    chain.time += servers[j].communication + servers[j].compute * count;
    covered = std::min(covered + count, service.blocks);
    if (covered < service.blocks) continue;
    placement.rate_per_slot += 1 / chain.time;
    placement.chains.push_back(std::move(chain));
    chain = {};
    covered = 0;
    if (!demand.use_all && demand.rate > 0 && placement.rate_per_slot >= needed) break;
  }
  placement.meets_demand = !placement.chains.empty() && placement.rate_per_slot >= needed;
  return placement;
}

BlockPlacement GreedyPlacement(absl::Span<const ChainServer> servers, const ChainService& service,
                               int64_t reserved, const Demand& demand) {
  std::vector<int32_t> order(servers.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> per_block(servers.size(), 0);
  for (size_t j = 0; j < servers.size(); ++j) {
    const int32_t count = BlocksWithReserve(servers[j], service, reserved);
    if (count > 0) per_block[j] = servers[j].communication / count + servers[j].compute;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return per_block[a] < per_block[b]; });
  return PlaceInOrder(servers, service, reserved, demand, order);
}

}  // namespace bfio::core
