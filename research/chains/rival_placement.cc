#include "research/chains/rival_placement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "chains/core/server_pool.h"

namespace bfio::sim {
namespace {

double MeanServiceTime(absl::Span<const core::ChainServer> servers, const core::ChainService& service) {
  double per_block = 0;
  int32_t hosting = 0;
  for (const core::ChainServer& server : servers) {
    const int32_t count = core::BlocksWithReserve(server, service, 1);
    if (count == 0) continue;
    per_block += server.communication / count + server.compute;
    ++hosting;
  }
  return hosting == 0 ? 0 : service.blocks * per_block / hosting;
}

int64_t SessionsToReserve(absl::Span<const core::ChainServer> servers, const core::ChainService& service,
                          double rate) {
  const double jobs = rate * MeanServiceTime(servers, service);
  double memory = 0;
  for (const core::ChainServer& server : servers) memory += server.memory;
  const double places = service.blocks + static_cast<double>(servers.size());
  const int64_t by_memory =
      core::WholeUnits(memory - service.block_size * places, service.cache_size * places);
  const auto by_demand = static_cast<int64_t>(std::min<double>(jobs + std::sqrt(jobs), core::kMostSlots));
  return std::max<int64_t>(1, std::min(by_demand, by_memory));
}

// CG-BP's state over the blocks.
class Coverage {
 public:
  Coverage(const core::ChainService& service, int64_t sessions, double slowest)
      : sessions_(sessions),
        slowest_(slowest),
        capacity_(service.blocks, 0),
        time_(service.blocks, static_cast<double>(sessions) * (slowest + 1)) {}

  // The start of the best window of `count` blocks.
  int32_t BestWindow(int32_t count) const {
    const auto blocks = static_cast<int32_t>(capacity_.size());
    std::optional<int32_t> best;
    double most = 0;
    for (int32_t a = 0; a + count <= blocks; ++a) {
      const auto from = capacity_.begin() + a;
      if (std::none_of(from, from + count, [&](int64_t c) { return c < sessions_; })) continue;
      const double time = std::accumulate(time_.begin() + a, time_.begin() + a + count, 0.0);
      if (!best.has_value() || time > most) best = a, most = time;
    }
    return best.has_value() ? *best : LeastServedWindow(count);
  }

  void Place(const BlockRange& range, double time, int64_t capacity) {
    for (int32_t b = range.first; b < range.end(); ++b) {
      const int64_t missing = std::max<int64_t>(sessions_ - capacity_[b], 0);
      time_[b] -= (slowest_ - time) * static_cast<double>(std::min(missing, capacity));
      capacity_[b] += capacity;
    }
  }

 private:
  int32_t LeastServedWindow(int32_t count) const {
    const auto blocks = static_cast<int32_t>(capacity_.size());
    int32_t best = 0;
    std::vector<int64_t> least;
    for (int32_t a = 0; a + count <= blocks; ++a) {
      std::vector<int64_t> window(capacity_.begin() + a, capacity_.begin() + a + count);
      std::sort(window.begin(), window.end());
      if (least.empty() || window < least) best = a, least = std::move(window);
    }
    return best;
  }

  const int64_t sessions_;
  const double slowest_;
  std::vector<int64_t> capacity_;  // C_b
  std::vector<double> time_;       // T_b
};

}  // namespace

core::BlockRanges PetalsPlacement(absl::Span<const core::ChainServer> servers,
                                  const core::ChainService& service, const PetalsOptions& options,
                                  absl::Span<const int32_t> order) {
  core::BlockRanges placement(servers.size());
  std::vector<double> announced(service.blocks, 0);
  for (const int32_t j : order) {
    auto count = static_cast<int32_t>(std::min<int64_t>(
        core::WholeUnits(servers[j].memory - options.kept_memory, options.block_memory), service.blocks));
    if (options.throughput[j].most_blocks > 0) count = std::min(count, options.throughput[j].most_blocks);
    if (count == 0) continue;
    int32_t best = 0;
    double least = 0;
    for (int32_t a = 0; a + count <= service.blocks; ++a) {
      const double sum = std::accumulate(announced.begin() + a, announced.begin() + a + count, 0.0);
      if (a == 0 || sum < least) best = a, least = sum;
    }
    placement[j] = {best, count};
    const PetalsThroughput& of = options.throughput[j];
    const double mine = std::min(of.forward / ((1 + count) / 2.0), of.network);
    for (int32_t b = best; b < best + count; ++b) announced[b] += mine;
  }
  return placement;
}

BprrPlacement PlaceByBprr(absl::Span<const core::ChainServer> servers, const core::ChainService& service,
                          double demand_rate) {
  BprrPlacement placement;
  placement.sessions = SessionsToReserve(servers, service, demand_rate);
  placement.ranges.resize(servers.size());
  std::vector<double> time(servers.size(), 0);
  std::vector<int32_t> counts(servers.size(), 0), order;
  double slowest = 0;
  for (size_t j = 0; j < servers.size(); ++j) {
    counts[j] = core::BlocksWithReserve(servers[j], service, placement.sessions);
    if (counts[j] == 0) continue;
    time[j] = servers[j].communication / counts[j] + servers[j].compute;
    slowest = std::max(slowest, time[j]);
    order.push_back(static_cast<int32_t>(j));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return time[a] < time[b]; });
  Coverage coverage(service, placement.sessions, slowest);
  for (const int32_t j : order) {
    const BlockRange range = {coverage.BestWindow(counts[j]), counts[j]};
    placement.ranges[j] = range;
    coverage.Place(range, time[j], core::CacheSlots(servers[j], service, range) / range.count);
  }
  return placement;
}

}  // namespace bfio::sim
