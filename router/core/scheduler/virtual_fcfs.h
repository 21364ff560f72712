// How long requests would wait if the oldest always went first, in fair order of the tenants.
//
// Purpose: the reference wait of a class of a pool, for all its groups. Whichever requests are admitted, a
// first-come rule fills the same slots at the same steps as any other rule that leaves none empty, so its
// pool holds as many requests as ours. Counting arrivals and admissions is therefore enough to determine
// which requests it would admit now and how long they have waited; no second group is simulated.
// (Completions come at the same steps only as far as the lengths of the admitted requests are alike, so this
// is an estimate.)
//
// Tenants. First come, first served lets a tenant with many requests delay the others, and a fair rule must
// not be measured by it. The reference therefore admits the oldest request of the least served tenant: each
// admission charges its tenant the mean charge of the tenant's requests (TenantService::MeanCharge), and a
// tenant that comes back is lifted to the one served last. With one tenant this is first come, first served.
//
// Where KV is the limit, the premise is not true: the number of requests that fit depends on their sizes. The
// result is then the wait if as many requests were admitted as here, but in this order.
//
// Arrivals count from the step at which they entered the pool, however late the next decision is. Threads:
// one. Cost: O(log tenants) amortised per request; a quantile per question after an admission. Memory: O(1)
// for each tenant that waits or is ahead of the one served last.
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
  // A request that waits since `step` enters the pool.
  void Arrive(int64_t step, uint32_t tenant = 0);
  // One of the tenant is cancelled: its oldest leaves, without a wait, or the next one of any tenant where
  // all of the tenant's have been admitted here. REQUIRES: a request is here.
  void Leave(uint32_t tenant = 0);
  // A decision at `step` has admitted so many. `charge`: of a tenant's mean request, positive. REQUIRES: so
  // many are here.
  void Decide(int64_t step, int64_t admitted, absl::FunctionRef<double(uint32_t tenant)> charge);
  // Equal charges.
  void Decide(int64_t step, int64_t admitted) {
    Decide(step, admitted, [](uint32_t) { return 1.0; });
  }

  int64_t size() const { return queued_; }
  // 99 % of recent requests would have waited at most so many steps; 0 before there were any. long_run_p99:
  // the same over a time ten times as long.
  int64_t p99() const { return recent_.P99(); }
  int64_t long_run_p99() const { return long_run_.P99(); }
  // Steps that the request which it would admit next has waited at `step`; 0 when none waits.
  int64_t WaitOfNext(int64_t step) const;
  // The same of the tenant's oldest; 0 when the tenant has none here.
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
    // Below 0: to be computed again.
    mutable int64_t p99 = 0;

    int64_t P99() const;
  };

  // Takes the tenant's oldest out and charges the tenant. Returns the step it waits since.
  int64_t TakeOldest(std::set<Turn>::const_iterator turn, double charge);
  // Forgets tenants without requests that would be lifted anyway.
  void Prune();

  absl::flat_hash_map<uint32_t, Tenant> tenants_;
  std::set<Turn> order_;
  int64_t queued_ = 0;
  // Of the tenant that was admitted last, before its charge.
  double floor_ = 0;
  size_t prune_at_ = 0;
  Waits recent_, long_run_;
  // Mean requests admitted per decision, recently.
  double admitted_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_VIRTUAL_FCFS_H_
