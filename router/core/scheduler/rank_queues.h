// The requests that each wait for one rank, because their clients have named that rank
// (RequestSpec::held_to).
//
// Purpose: these requests are not part of a policy's input. They wait beside the pool, so that a full rank
// delays only its own requests; DecisionMaker places them before it calls the policy. Each rank's requests
// are in the order of WaitingPool. Owned by RequestPool; one thread. Cost: a look-up by rank or id, plus that
// of WaitingPool.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_RANK_QUEUES_H_
#define BFIO_ROUTER_CORE_SCHEDULER_RANK_QUEUES_H_

#include <cstdint>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "router/core/model/request.h"
#include "router/core/scheduler/waiting_pool.h"

namespace bfio::core {

class RankQueues {
 public:
  // Null: none waits for that rank.
  const WaitingPool* Find(const RequestSpec::HeldRank& rank) const {
    const auto it = queues_.find(rank);
    return it == queues_.end() ? nullptr : &it->second;
  }
  // Whether any request waits for a rank of the group.
  bool Any(int32_t group) const {
    const auto it = queues_.lower_bound({group, 0});
    return it != queues_.end() && it->first.group == group;
  }
  bool Contains(RequestId id) const { return ranks_.contains(id); }
  // REQUIRES: Contains(id).
  const RequestSpec& Spec(RequestId id) const { return queues_.at(ranks_.at(id)).Spec(id); }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  // By group and rank.
  const std::map<RequestSpec::HeldRank, WaitingPool>& all() const { return queues_; }

  // Returns the queue to which the caller must add `request` next. REQUIRES: held_to is set, and the request
  // is in no queue.
  WaitingPool& Enter(const RequestSpec& request) {
    ranks_.emplace(request.id, *request.held_to);
    return queues_[*request.held_to];
  }
  // False when it is in no queue.
  bool Remove(RequestId id) {
    const auto rank = ranks_.find(id);
    if (rank == ranks_.end()) return false;
    const auto queue = queues_.find(rank->second);
    queue->second.Remove(id);
    if (queue->second.empty()) queues_.erase(queue);
    ranks_.erase(rank);
    return true;
  }

 private:
  std::map<RequestSpec::HeldRank, WaitingPool> queues_;
  absl::flat_hash_map<RequestId, RequestSpec::HeldRank> ranks_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_RANK_QUEUES_H_
