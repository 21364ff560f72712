#include "router/group/member_history.h"

#include <algorithm>

namespace bfio::router {

void MemberHistory::Punish(const std::string& worker_id, absl::Time now) {
  // Names come from outside; penalties that are forgotten early do no harm.
  if (penalties_.size() >= kMaxWorkers && !penalties_.contains(worker_id)) penalties_.clear();
  Penalty& penalty = penalties_[worker_id];
  penalty.until = now + std::min(kLastPenalty, kFirstPenalty * (1 << std::min(penalty.count++, 10)));
}

bool MemberHistory::Refuses(const std::string& worker_id, absl::Time now) const {
  const auto it = penalties_.find(worker_id);
  return it != penalties_.end() && now < it->second.until;
}

void MemberHistory::RememberDraining(const std::string& worker_id, uint64_t instance) {
  if (draining_.size() < kMaxWorkers) draining_[worker_id] = instance;
}

bool MemberHistory::TakeDraining(const std::string& worker_id, uint64_t followed, uint64_t own) {
  const auto it = draining_.find(worker_id);
  if (it == draining_.end()) return false;
  const uint64_t before = it->second;
  draining_.erase(it);
  return followed != 0 && (followed == own || followed == before);
}

}  // namespace bfio::router
