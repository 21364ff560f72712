// Least work: the oldest request goes to the worker that has the least to compute, this request included.
//
// Purpose: placement for ranks that step independently and share prompts' prefixes (engines with prefix
// caching). The work of worker g with the request, in tokens that it computes:
// caching). Work of worker g including the request, in tokens to compute:
//
//   p_g + (1 + h) * m_g + n_g * o
// p_g: prompt tokens that the worker has not computed yet. m_g: tokens of the request's prompt that are not
// in its cache. n_g: number of its requests. o: the mean output. h: the share of recent prompts' tokens that
// were expected to be in their workers' caches. A token costs about the same in a prompt as in a decode, so
// no weight is needed. Where outputs are long, requests spread by number (least_requests). Where prompts are
// long and shared, a request goes where its prefix is, until that worker has more to do than the prefix
// saves. A computed token also replaces another one in the cache, which would have been found with
// probability h: hence 1 + h.
// which would have been found with probability h: hence 1 + h.
// Where capacity is short, a slot that becomes free is best used by a request whose prefix is on that worker.
// So if a full worker has more of a request's prefix than all workers with capacity, the request lets the
// others of its class go first, up to twice the 99th percentile of waits under first come, first served
// (Snapshot::first_come). The request also waits although a busy worker has capacity, for the time that this
// worker would take to compute what it lacks (the ski rental rule): otherwise a group that is nearly full
// would compute every prompt everywhere. Only requests of the lowest waiting class do this, so that no lower
// class takes the capacity.
// that is nearly full would compute every prompt everywhere. Only requests of the lowest waiting class wait
// Ties: fewest requests, then round robin. At a deadline (StopSignal) prefixes are ignored for the rest.
// Threads: as Policy. Cost: a bisection in the cache of each worker with capacity for each request that is
// looked at or placed, a look-up for each other worker, and an entry for each block that a placed prompt
// brings.
// remaining requests. Threads: as Policy. Cost: for each request that is looked at or placed, a bisection in
// the cache of each worker with free capacity and a look-up for each other worker; an entry for each block
// that a placed prompt adds.
#ifndef BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_
#define BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"
#include "router/core/prefix/prefix_view.h"

namespace bfio::core {

class LeastWorkPolicy final : public Policy {
 public:
  explicit LeastWorkPolicy(StopSignal stop) : stop_(std::move(stop)) {}

  absl::string_view name() const override { return "least_work"; }
  bool uses_prefixes() const override { return true; }
  bool uses_first_come_waits() const override { return true; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  // Whether capacity has shrunk so far that such a request fits no worker.
  bool Refused(const WaitingView& request) {
    return refusals_.Refused(request.kv_need, request.kv_reserve_tokens);
  }
  // Call before a request's prefix is looked up on all workers. After the deadline caches_ is null.
  void ReadDeadline(Decision& decision);
  // FindOn: tokens of its prompt that the worker has according to the placements there (PrefixCaches::Find)
  // and to this plan. REQUIRES: caches_ is set. The second: how many tokens it is expected to have.
  int64_t FindOn(const WaitingView& request, WorkerIndex worker) const;
  int64_t CachedOn(const WaitingView& request, WorkerIndex worker) const;
  // Whether younger requests may go first, or whether it waits although there is capacity; by elsewhere_.
  // capacity; 0 where that is less than a block. Considers only workers that accept requests.
  int64_t MoreElsewhere(const Snapshot& snapshot, const WaitingView& request) const;
  // Records that the plan places the request there.
  // there is free capacity.
  bool LetsOthersGoFirst(const Snapshot& snapshot, int32_t index) const;
  bool StaysFor(const Snapshot& snapshot, int32_t index) const;
  // Notes that this plan places the request on the worker.
  void Plan(const WaitingView& request, WorkerIndex worker);
  // Places the request if it is not placed yet and fits on a worker.
  void Place(const Snapshot& snapshot, int32_t index, Decision& decision);
  WorkerIndex Choose(const Snapshot& snapshot, const WaitingView& request);

  const StopSignal stop_;
  FreeCapacity free_;
  KvRefusals refusals_;
  // Blocks that the plan's prompts bring to workers that did not have them.
  const PrefixCaches* caches_ = nullptr;
  // By worker: prompt tokens that it still has to compute, including those of this plan.
  int32_t looked_up_ = 0;
  // Blocks that this plan's prompts add to workers that did not have them.
  absl::flat_hash_set<std::pair<WorkerIndex, uint64_t>> planned_;
  // By worker: prompt tokens that it has to compute, including those of this plan.
  std::vector<int64_t> pending_;
  WorkerIndex next_ = 0;
  // Scratch, by waiting index.
  std::vector<char> placed_;
  std::vector<int64_t> elsewhere_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_
