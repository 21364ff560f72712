// How long requests would wait if the oldest always went first, in fair order of the tenants.
//
// Purpose: the reference wait of a class of a pool, for all its groups. Whichever requests are admitted, a
// first-come rule fills the same slots at the same steps as any other rule that leaves none empty, so its
// pool holds as many requests as the real one. Counting arrivals and admissions is therefore enough to
// determine which requests it would admit now and how long they have waited; no second group is simulated.
// (Completions occur at the same steps only if the admitted requests have the same lengths, so this is an
// estimate.)
//
// Tenants. First come, first served lets a tenant with many requests delay the others, so it is no reference
// for a fair rule. The reference therefore admits the oldest request of the least served tenant: each
// admission charges its tenant the mean charge of the tenant's requests (TenantService::MeanCharge), and the
// counter of a tenant that returns is raised to that of the tenant served last. With one tenant this is first
// come, first served.
//
// Where KV memory is the limit, the number of requests that fit depends on their sizes, so the premise does
// not hold. The result is then the wait if the same number of requests were admitted, in this order.
//
// Arrivals count from the step at which they entered the pool, however late the next decision is. Threads:
// one. Cost: O(log tenants) amortised per request; one quantile computation per query after an admission.
// Memory: O(1) for each tenant that waits or is ahead of the one served last.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_
#define BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "router/core/scheduler/recent_waits.h"

namespace bfio::core {

class VirtualFcfs {
 public:
  // A request that has waited since `step` enters the pool.
  void Arrive(int64_t step, uint32_t tenant = 0);
  // A request of the tenant was cancelled: the tenant's oldest leaves, without a recorded wait. Where the
  // reference has admitted all of the tenant's requests, the next one of any tenant leaves. REQUIRES: not
  // empty.
  void Leave(uint32_t tenant = 0);
  // A decision at `step` has admitted `admitted` requests. `charge`: mean charge of a tenant's request,
  // positive. REQUIRES: at least `admitted` requests are here.
  void Decide(int64_t step, int64_t admitted, absl::FunctionRef<double(uint32_t tenant)> charge);
  // With equal charges for all tenants.
  void Decide(int64_t step, int64_t admitted) {
    Decide(step, admitted, [](uint32_t) { return 1.0; });
  }

  int64_t size() const { return queued_; }
  // 99 % of recent requests would have waited at most this many steps; 0 before the first request.
  // long_run_p99: the same over a time ten times as long.
  int64_t p99() const { return recent_.P99(); }
  int64_t long_run_p99() const { return long_run_.P99(); }
  // Steps that the next request to admit has waited at `step`; 0 when none waits.
  int64_t WaitOfNext(int64_t step) const;
  // The same for the tenant's oldest request; 0 when the tenant has none here.
  int64_t WaitOfNext(int64_t step, uint32_t tenant) const;

 private:
  struct Arrivals {
    int64_t step;
    int64_t requests;
  };
  struct Tenant {
    // Ascending by step.
    std::deque<Arrivals> queue;
    double served = 0;
  };
  // A tenant with requests here: the least served first, then the one whose request is the oldest.
  struct Turn {
    double served;
    int64_t oldest;
    uint32_t tenant;

    auto operator<=>(const Turn&) const = default;
  };
  struct Waits {
    RecentWaits waits;
    // Below 0: has to be computed again.
    mutable int64_t p99 = 0;

    int64_t P99() const;
  };

  // Removes the tenant's oldest request and charges the tenant. Returns the step since which it has waited.
  int64_t TakeOldest(std::set<Turn>::const_iterator turn, double charge);
  // Removes tenants without requests whose counters would be raised anyway.
  void Prune();

  absl::flat_hash_map<uint32_t, Tenant> tenants_;
  std::set<Turn> order_;
  int64_t queued_ = 0;
  // The counter of the tenant that was admitted last, before its charge.
  double floor_ = 0;
  size_t prune_at_ = 0;
  Waits recent_, long_run_;
  // Recent mean number of requests admitted per decision.
  double admitted_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_
