// Folding contributions into what the group learns. Pure.
#ifndef BFIO_WORKER_BARRIER_VIEW_H_
#define BFIO_WORKER_BARRIER_VIEW_H_

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/barrier/barrier.h"

namespace bfio::worker {

inline GroupView ViewOf(const Contribution& mine) {
  return {mine.load_tokens, mine.load_tokens, mine.local_ns, mine.local_ns, mine.active};
}

inline void Fold(const GroupView& other, GroupView& into) {
  into.max_load_tokens = std::max(into.max_load_tokens, other.max_load_tokens);
  into.sum_load_tokens += other.sum_load_tokens;
  into.max_local_ns = std::max(into.max_local_ns, other.max_local_ns);
  into.sum_local_ns += other.sum_local_ns;
  into.sum_active += other.sum_active;
}

// INVALID_ARGUMENT unless 0 <= rank < world_size.
inline absl::Status CheckGroup(const GroupSpec& group) {
  if (group.world_size >= 1 && group.rank >= 0 && group.rank < group.world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no rank ", group.rank, " in a group of ", group.world_size, " ranks"));
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_VIEW_H_
