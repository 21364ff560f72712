// Combines contributions into the group's view; the check that every barrier makes. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/barrier/barrier.h"

namespace bfio::worker {

inline GroupView ViewOf(const Contribution& mine) {
  return {mine.load_tokens, mine.load_tokens, mine.local_ns, mine.local_ns, mine.active, mine.stop_flags};
}

// Saturates: a peer may send any number.
inline void AddBounded(int64_t more, int64_t& sum) {
  if (__builtin_add_overflow(sum, more, &sum)) sum = more < 0 ? INT64_MIN : INT64_MAX;
}

inline void Fold(const GroupView& other, GroupView& into) {
  into.max_load_tokens = std::max(into.max_load_tokens, other.max_load_tokens);
  AddBounded(other.sum_load_tokens, into.sum_load_tokens);
  into.max_local_ns = std::max(into.max_local_ns, other.max_local_ns);
  AddBounded(other.sum_local_ns, into.sum_local_ns);
  AddBounded(other.sum_active, into.sum_active);
  into.stop_flags |= other.stop_flags;
}

// INVALID_ARGUMENT unless 0 <= rank < world_size.
inline absl::Status CheckGroup(const GroupSpec& group) {
  if (group.world_size >= 1 && group.rank >= 0 && group.rank < group.world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no rank ", group.rank, " in a group of ", group.world_size, " ranks"));
}

}  // namespace bfio::worker
