#include "router/group/member.h"

#include <algorithm>

namespace bfio::router {

MemberHistory::Penalty& MemberHistory::PenaltyOf(const std::string& worker_id) {
  // Worker ids come from outside, so the map is bounded; losing penalties early is harmless.
  if (penalties_.size() >= kMaxWorkers && !penalties_.contains(worker_id)) penalties_.clear();
  return penalties_[worker_id];
}

void MemberHistory::Punish(const std::string& worker_id, absl::Time now) {
  Penalty& penalty = PenaltyOf(worker_id);
  penalty.until = now + std::min(kLastPenalty, kFirstPenalty * (1 << std::min(penalty.count++, 10)));
}

void MemberHistory::CountLeft(const std::string& worker_id, absl::Time now) {
  if (left_.size() >= kMaxLeft) left_.pop_front();
  left_.push_back(now);
  if (++PenaltyOf(worker_id).left > 1) Punish(worker_id, now);
}

int MemberHistory::RecentlyLeft(absl::Time now) const {
  return static_cast<int>(
      std::count_if(left_.begin(), left_.end(), [&](absl::Time time) { return now - time < kLeftMemory; }));
}

bool MemberHistory::Refuses(const std::string& worker_id, absl::Time now) const {
  const auto it = penalties_.find(worker_id);
  return it != penalties_.end() && now < it->second.until;
}

void MemberHistory::RememberDraining(const std::string& worker_id, uint64_t instance) {
  // The oldest entry is the likeliest to have left for good, because names of pods do not return.
  if (draining_.size() >= kMaxWorkers && !draining_.contains(worker_id)) {
    draining_.erase(std::min_element(draining_.begin(), draining_.end(), [](const auto& a, const auto& b) {
      return a.second.sequence < b.second.sequence;
    }));
  }
  draining_[worker_id] = {instance, next_sequence_++};
}

bool MemberHistory::TakeDraining(const std::string& worker_id, uint64_t followed, uint64_t own) {
  const auto it = draining_.find(worker_id);
  if (it == draining_.end()) return false;
  const uint64_t before = it->second.instance;
  draining_.erase(it);
  return followed != 0 && (followed == own || followed == before);
}

}  // namespace bfio::router
