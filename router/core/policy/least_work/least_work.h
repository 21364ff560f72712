// Least work: the oldest request goes to the worker that has least to compute with it.
//
// Purpose: placement for ranks that step independently and share prompts' prefixes (engines with prefix
// caching). What worker g has to do with the request, in tokens that it computes:
//
//   p_g + (1 + h) * m_g + n_g * o
//
// p_g being the prompt tokens that it has not computed yet, m_g the tokens of the request's prompt that its
// cache does not hold, n_g the number of its requests, o the mean output, and h the share of prompts' tokens
// that their workers were expected to have lately. A token costs about the same in a prompt as in a decode,
// so no weight is needed: where outputs are long, requests spread by number (least_requests), and where
// prompts are long and shared, a request goes where its prefix is, until that worker has more to do than the
// prefix saves. A token that is computed also takes the place of another in the cache, which would have been
// found with probability h: hence 1 + h.
//
// Where capacity is short, a slot that falls free is best used by a request whose prefix is on that worker.
// So a request of which a worker without room has more than all with room lets the others of its class go
// first, up to twice the 99th percentile of waits under first come, first served (Snapshot::first_come). And
// it waits, though a busy worker has room, as long as that worker would take to compute what it lacks there
// (the ski rental rule): a group that is nearly full would otherwise compute every prompt everywhere. Only
// requests of the lowest class that waits do: others would leave the room to a lower class.
//
// Ties: fewest requests, then in turn. At a deadline (StopSignal) prefixes are ignored for the rest. Threads:
// as Policy. Cost: a bisection in the cache of each worker with room for each request that is looked at or
// placed, a look-up for each other worker, and an entry for each block that a placed prompt brings.
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
  // Capacity that has shrunk to where such a request fits no worker.
  bool Refused(const WaitingView& request) {
    return refusals_.Refused(request.kv_need, request.kv_reserve_tokens);
  }
  // Call before a request's prefix is looked up on all workers; after the deadline there are no caches.
  void ReadDeadline(Decision& decision);
  // Tokens of its prompt that the worker has by what was placed there, and by this plan (PrefixCaches::Find);
  // and how many it is expected to have. FindOn REQUIRES caches.
  int64_t FindOn(const WaitingView& request, WorkerIndex worker) const;
  int64_t CachedOn(const WaitingView& request, WorkerIndex worker) const;
  // Tokens that a worker which takes requests, but has no room now, has of its prompt beyond those of all
  // with room; 0 where that is less than a block.
  int64_t MoreElsewhere(const Snapshot& snapshot, const WaitingView& request) const;
  // By that number, in elsewhere_: younger ones may go first; it waits though there is room.
  bool LetsOthersGoFirst(const Snapshot& snapshot, int32_t index) const;
  bool StaysFor(const Snapshot& snapshot, int32_t index) const;
  // The plan places it there.
  void Plan(const WaitingView& request, WorkerIndex worker);
  // Places it if it is not placed and fits anywhere.
  void Place(const Snapshot& snapshot, int32_t index, Decision& decision);
  WorkerIndex Choose(const Snapshot& snapshot, const WaitingView& request);

  const StopSignal stop_;
  FreeCapacity free_;
  KvRefusals refusals_;
  // Null: none, or the deadline has passed.
  const PrefixCaches* caches_ = nullptr;
  // Requests in this decision.
  int32_t looked_up_ = 0;
  // Blocks that the plan's prompts bring to workers which have not had them.
  absl::flat_hash_set<std::pair<WorkerIndex, uint64_t>> planned_;
  // By worker: prompt tokens that it has to compute, those of this plan included.
  std::vector<int64_t> pending_;
  WorkerIndex next_ = 0;
  // Scratch, by waiting index.
  std::vector<char> placed_;
  std::vector<int64_t> elsewhere_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_
