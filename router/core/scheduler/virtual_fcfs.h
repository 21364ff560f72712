// How long requests would wait if the oldest always went first, in fair order of the tenants: the reference
// wait of a class of a pool, for all its groups. A first-come rule fills the same slots at the same steps as
// any other rule that leaves none empty, so counting arrivals and admissions is enough to determine which
// requests it would admit now (an estimate, because completions depend on which were admitted). The reference
// admits the oldest request of the least served tenant: each admission charges its tenant the mean charge of
// the tenant's requests (TenantService::MeanCharge), and the counter of a tenant that returns is raised to
// that of the tenant served last.
//
// Where KV memory is the limit, the result is the wait if the same number of requests were admitted, in this
// order. Arrivals count from the step at which they entered the pool. Threads: one. Cost: O(log tenants)
// amortised per request; one quantile computation per query after an admission.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace bfio::core {

// The distribution of recent waits. A quantile over the recent samples of a stream, in constant memory and a
// few hundred additions per quantile. It covers the last full block of samples and the block that is being
// filled, so a burst no longer counts after two blocks at the latest. (With exponential decay a burst would
// determine the 99th percentile until its weight has decayed by a factor of 100.) Waits are whole steps,
// exact up to kExact and within 3 % beyond. Threads: one.
class RecentWaits {
 public:
  // A block ends after `block` samples. REQUIRES: block >= 1, steps >= 0.
  void Add(int64_t steps, int64_t block);

  // The least wait that at most a share `above` of the samples exceeds; 0 before the first sample.
  int64_t Quantile(double above) const;

 private:
  static constexpr int64_t kExact = 256;
  static constexpr int64_t kPerDoubling = 32;

  struct Block {
    // By bucket.
    std::vector<int64_t> counts;
    int64_t samples = 0;

    int64_t At(size_t bucket) const { return bucket < counts.size() ? counts[bucket] : 0; }
  };

  static size_t Bucket(int64_t steps);
  // The smallest wait that falls into the bucket.
  static int64_t Lowest(size_t bucket);

  Block full_, filling_;
};

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
