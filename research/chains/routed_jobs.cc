#include "research/chains/routed_jobs.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "chains/core/composition.h"

namespace bfio::sim {
namespace {

// A server's cache: slots of running jobs, and the expected use by waiting jobs.
class Cache {
 public:
  explicit Cache(int64_t slots) : slots_(slots) {}

  bool EverFits(int64_t slots) const { return slots <= slots_; }
  bool Fits(int64_t slots) const { return used_ + slots <= slots_; }
  // Jobs that run or wait here.
  int64_t jobs() const { return static_cast<int64_t>(ends_.size()); }
  int64_t slots() const { return slots_; }

  // The earliest time from `now` on at which `slots` slots are expected to be free, and to stay free.
  // REQUIRES: EverFits(slots).
  double FreeFrom(double now, int64_t slots) const {
    double at = now;
    int64_t used = expected_;
    for (const auto& [end, held] : ends_) {
      if (used + slots <= slots_) break;
      used -= held;
      at = std::max(at, end);
    }
    return at;
  }

  void Begin(int64_t slots) { used_ += slots; }
  void End(int64_t slots) { used_ -= slots; }
  // Adds the expected end of a running or waiting job.
  void Expect(double end, int64_t slots) {
    ends_.emplace(end, slots);
    expected_ += slots;
  }
  void Forget(double end, int64_t slots) {
    expected_ -= slots;
    const auto [first, last] = ends_.equal_range(end);
    ends_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == slots; }));
  }

 private:
  int64_t slots_;
  int64_t used_ = 0;
  // Sum of the slots in `ends_`.
  int64_t expected_ = 0;
  std::multimap<double, int64_t> ends_;
};

class Router {
 public:
  Router(const RoutedSystem& system, const RoutingRule& rule, absl::Span<const ChainJob> jobs)
      : system_(system), rule_(rule), jobs_(jobs), shortest_(system.service, system_.placement) {
    for (size_t j = 0; j < system.servers.size(); ++j)
      caches_.emplace_back(core::CacheSlots(system.servers[j], system.service, system.placement[j]));
  }

  // False: no chain of servers has memory for a job.
  bool Arrive(size_t index) {
    const double now = jobs_[index].arrival;
    EndUntil(now);
    auto chain = shortest_.Find([&](int32_t j, int32_t count) { return Cost(j, count, now); });
    if (!chain.has_value()) return false;
    Route& route = routes_.emplace_back();
    double start = now, time = 0;
    for (const core::ChainHop& hop : chain->hops) {
      start = std::max(start, caches_[hop.server].FreeFrom(now, hop.range.count));
      time +=
          system_.servers[hop.server].communication + system_.servers[hop.server].compute * hop.range.count;
    }
    route.service = (rule_.time ? rule_.time(index, *chain) : jobs_[index].size * time) + rule_.start_delay;
    route.hops = std::move(chain->hops);
    route.end = start + route.service;
    for (const core::ChainHop& hop : route.hops) caches_[hop.server].Expect(route.end, hop.range.count);
    if (!TryBegin(index, now)) waiting_.push_back(index);
    return true;
  }

  std::vector<ServedJob> Finish() {
    EndUntil(std::numeric_limits<double>::infinity());
    return std::move(served_);
  }

 private:
  struct Route {
    std::vector<core::ChainHop> hops;
    double service = 0;
    // The expected end; the actual one once the job has started.
    double end = 0;
  };

  bool TryBegin(size_t index, double now) {
    Route& route = routes_[index];
    for (const core::ChainHop& hop : route.hops) {
      if (!caches_[hop.server].Fits(hop.range.count)) return false;
    }
    for (const core::ChainHop& hop : route.hops) {
      caches_[hop.server].Begin(hop.range.count);
      caches_[hop.server].Forget(route.end, hop.range.count);
      caches_[hop.server].Expect(now + route.service, hop.range.count);
    }
    route.end = now + route.service;
    running_.emplace(route.end, index);
    served_.resize(std::max(served_.size(), index + 1));
    served_[index] = {jobs_[index].arrival, now - jobs_[index].arrival, route.service,
                      route.hops.front().server};
    return true;
  }

  void EndUntil(double time) {
    while (!running_.empty() && running_.begin()->first <= time) {
      const auto [now, index] = *running_.begin();
      running_.erase(running_.begin());
      for (const core::ChainHop& hop : routes_[index].hops) {
        caches_[hop.server].End(hop.range.count);
        caches_[hop.server].Forget(routes_[index].end, hop.range.count);
      }
      routes_[index].hops.clear();
      waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                    [&, now = now](size_t job) { return TryBegin(job, now); }),
                     waiting_.end());
    }
  }

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
  const absl::Span<const ChainJob> jobs_;
  core::ShortestChain shortest_;
  std::vector<Cache> caches_;
  std::vector<Route> routes_;
  // By end time.
  std::multimap<double, size_t> running_;
  // In the order of arrival.
  std::vector<size_t> waiting_;
  std::vector<ServedJob> served_;
};

}  // namespace

absl::StatusOr<std::vector<ServedJob>> ServeByRoutes(const RoutedSystem& system, const RoutingRule& rule,
                                                     absl::Span<const ChainJob> jobs) {
  Router router(system, rule, jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (!router.Arrive(i))
      return absl::FailedPreconditionError(
          "no chain of servers has memory for all blocks and the cache of one job");
  }
  return router.Finish();
}

}  // namespace bfio::sim
