#include "tools/sim/chains/routed_jobs.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "router/core/chain/shortest_chain.h"

namespace bfio::sim {
namespace {

constexpr size_t kRoutedAskEvery = 1 << 10;

// A server's cache over time. What has been promised ends; nothing is promised before `last_start_`.
class Cache {
 public:
  explicit Cache(int64_t slots) : slots_(slots) {}

  void Forget(double now) {
    while (!ends_.empty() && ends_.begin()->first <= now) {
      used_ -= ends_.begin()->second;
      ends_.erase(ends_.begin());
    }
  }
  bool EverFits(int64_t slots) const { return slots <= slots_; }
  // Jobs that run or wait here.
  auto jobs() const { return static_cast<int64_t>(ends_.size()); }
  int64_t slots() const { return slots_; }

  // The first time from `now` on with so many slots free, and free from then on. REQUIRES: EverFits(slots).
  double FreeFrom(double now, int64_t slots) const {
    double at = std::max(now, last_start_);
    int64_t used = used_;
    for (const auto& [end, held] : ends_) {
      if (end > at && used + slots <= slots_) break;
      used -= held;
      at = std::max(at, end);
    }
    return at;
  }
  void Promise(double start, double end, int64_t slots) {
    last_start_ = start;
    used_ += slots;
    ends_.emplace(end, slots);
  }

 private:
  int64_t slots_;
  int64_t used_ = 0;
  double last_start_ = 0;
  std::multimap<double, int64_t> ends_;
};

class Router {
 public:
  Router(const RoutedSystem& system, const RoutingRule& rule)
      : system_(system), rule_(rule), shortest_(system.service, system_.placement) {
    for (size_t j = 0; j < system.servers.size(); ++j)
      caches_.emplace_back(core::CacheSlots(system.servers[j], system.service, system.placement[j]));
  }

  std::optional<ServedJob> Serve(size_t index, const ChainJob& job) {
    for (Cache& cache : caches_) cache.Forget(job.arrival);
    const auto chain = shortest_.Find([&](int32_t j, int32_t count) { return Cost(j, count, job.arrival); });
    if (!chain.has_value()) return std::nullopt;
    double start = job.arrival, time = 0;
    for (const core::ChainHop& hop : chain->hops) {
      start = std::max(start, caches_[hop.server].FreeFrom(job.arrival, hop.range.count));
      time +=
          system_.servers[hop.server].communication + system_.servers[hop.server].compute * hop.range.count;
    }
    const double service = (rule_.time ? rule_.time(index, *chain) : job.size * time) + rule_.start_delay;
    for (const core::ChainHop& hop : chain->hops)
      caches_[hop.server].Promise(start, start + service, hop.range.count);
    return ServedJob{job.arrival, start - job.arrival, service, chain->hops.front().server};
  }

 private:
  double Cost(int32_t j, int32_t count, double now) const {
    const Cache& cache = caches_[j];
    if (!cache.EverFits(count)) return core::kNoWay;
    const core::ChainServer& server = system_.servers[j];
    if (rule_.kind == RoutingRule::Kind::kWaitAware)
      return cache.FreeFrom(now, count) - now + server.communication + server.compute * count;
    const bool full = cache.jobs() >= cache.slots() / system_.placement[j].count;
    return rule_.hop_per_token[j] + server.compute * count / rule_.output_tokens + (full ? rule_.penalty : 0);
  }

  const RoutedSystem& system_;
  const RoutingRule& rule_;
  core::ShortestChain shortest_;
  std::vector<Cache> caches_;
};

}  // namespace

absl::StatusOr<std::vector<ServedJob>> ServeByRoutes(const RoutedSystem& system, const RoutingRule& rule,
                                                     absl::Span<const ChainJob> jobs,
                                                     const std::function<bool()>& go_on) {
  Router router(system, rule);
  std::vector<ServedJob> served;
  served.reserve(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (i % kRoutedAskEvery == 0 && go_on && !go_on()) break;
    const std::optional<ServedJob> job = router.Serve(i, jobs[i]);
    if (!job.has_value())
      return absl::FailedPreconditionError("no chain of servers hosts all blocks with room for a job");
    served.push_back(*job);
  }
  return served;
}

}  // namespace bfio::sim
