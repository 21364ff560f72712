// Least work: a request goes to the worker where it adds least to its own time and to those of the requests
// there; for ranks that step independently and share prompts' prefixes. In tokens to compute
//   p_g + (1 + h + n_g) m_g + o K (c_g + n_g s) / M
// where p_g is the number of prompt tokens that the worker has not computed yet, which the request waits for;
// m_g the tokens of the request's prompt that its cache does not hold, for which its n_g requests wait, too;
// h the recent share of prompt tokens that were expected in their workers' caches: a computed token also
// evicts another; o the mean output; c_g the tokens of its requests, which every token of the request reads,
// and s those of the prompt, which theirs read; K / M the time to read one, where the memory has M.
//
// Where capacity is short, those go first of which least is left to compute and most is cached; the oldest,
// if they have waited for more than twice the 99th percentile of waits under first come, first served
// (Snapshot::first_come), or if there are several tenants. A request whose prefix is on a full worker lets
// others of its class go first as long. It also waits, although a busy worker has free capacity, as long as
// that worker would take to compute the missing tokens. Only requests of the lowest waiting class wait in
// this way. Ties: fewest requests, then the workers in turn. After a deadline prefixes are ignored. Threads:
// as Policy.
#pragma once

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
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  // Whether capacity has shrunk so far that such a request fits no worker.
  bool Refused(const WaitingView& request) {
    return refusals_.Refused(request.kv_need, request.kv_reserve_tokens);
  }
  // Sets order_ to the class's first requests, the next one first.
  void Order(const Snapshot& snapshot, int32_t first, int32_t end, Decision& decision);
  // Call before a request's prefix is looked up on all workers. After the deadline caches_ is null.
  void ReadDeadline(Decision& decision);
  // FindOn: tokens of its prompt that the worker has according to the placements there (PrefixCaches::Find)
  // and to this plan. REQUIRES: caches_ is set. The second: how many tokens it is expected to have.
  int64_t FindOn(const WaitingView& request, WorkerIndex worker) const;
  int64_t CachedOn(const WaitingView& request, WorkerIndex worker) const;
  // The most that a worker with free capacity is expected to have.
  int64_t MostCached(const WaitingView& request) const;
  // Tokens of its prompt that a worker without free capacity holds beyond those on every worker with free
  // capacity; 0 where that is less than a block. Considers only workers that accept requests.
  int64_t MoreElsewhere(const Snapshot& snapshot, const WaitingView& request) const;
  // Both use elsewhere_. The first: younger requests may go first. The second: the request waits although
  // there is free capacity.
  bool LetsOthersGoFirst(const Snapshot& snapshot, int32_t index) const;
  bool WaitsForPrefix(const Snapshot& snapshot, int32_t index) const;
  // Notes that this plan places the request on the worker.
  void Plan(const WaitingView& request, WorkerIndex worker);
  // Places the request if it is not placed yet and fits on a worker.
  void Place(const Snapshot& snapshot, int32_t index, Decision& decision);
  WorkerIndex Choose(const Snapshot& snapshot, const WaitingView& request);

  const StopSignal stop_;
  FreeCapacity free_;
  KvRefusals refusals_;
  // Null: none, or the deadline has passed.
  const PrefixCaches* caches_ = nullptr;
  // Number of requests looked up in this decision.
  int32_t looked_up_ = 0;
  // Blocks that this plan's prompts add to workers that did not have them.
  absl::flat_hash_set<std::pair<WorkerIndex, uint64_t>> planned_;
  // By worker: prompt tokens that it has to compute, including those of this plan.
  std::vector<int64_t> pending_;
  WorkerIndex next_ = 0;
  // Scratch, by waiting index.
  std::vector<char> placed_;
  std::vector<int64_t> elsewhere_;
  // Requests, by what is left to compute.
  std::vector<std::pair<double, int32_t>> order_;
};

}  // namespace bfio::core
