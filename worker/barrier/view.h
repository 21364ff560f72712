// Combines contributions into the group's view; checks that every barrier makes. Pure functions.
#ifndef BFIO_WORKER_BARRIER_VIEW_H_
#define BFIO_WORKER_BARRIER_VIEW_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/summation_tree.h"

namespace bfio::worker {

inline GroupView ViewOf(const Contribution& mine) {
  return {mine.load_tokens, mine.load_tokens, mine.local_ns,  mine.local_ns,
          mine.active,      mine.rows,        mine.stop_flags};
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
  into.max_rows = std::max(into.max_rows, other.max_rows);
  into.stop_flags |= other.stop_flags;
}

// INVALID_ARGUMENT unless 0 <= rank < world_size.
inline absl::Status CheckGroup(const GroupSpec& group) {
  if (group.world_size >= 1 && group.rank >= 0 && group.rank < group.world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no rank ", group.rank, " in a group of ", group.world_size, " ranks"));
}

// Compares signatures in the all-reduce with which a group forms: in these contributions the largest load is
// minus the largest time exactly when all signatures are equal. 40 bits, so that no sum overflows.
inline Contribution SignatureContribution(uint64_t signature) {
  const auto bits = static_cast<int64_t>(signature & ((uint64_t{1} << 40) - 1));
  return {.load_tokens = bits, .local_ns = -bits};
}
inline bool SameSignature(const GroupView& met) {
  return met.max_load_tokens == -met.max_local_ns;
}
inline absl::Status SignatureError(uint64_t epoch) {
  return absl::FailedPreconditionError(
      absl::StrCat("epoch ", epoch,
                   " did not form: the ranks have different models or settings; --mlp and --model must be "
                   "the same on all ranks"));
}

// INVALID_ARGUMENT unless all.size() is world_size times mine.size().
inline absl::Status CheckGatherSizes(int32_t world_size, absl::Span<const float> mine,
                                     absl::Span<const float> all) {
  if (all.size() == static_cast<size_t>(world_size) * mine.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("all-gather of ", mine.size(), " numbers from ", world_size, " ranks into ", all.size()));
}

// INVALID_ARGUMENT unless mine.size() is nodes x world_size x sum.size().
inline absl::Status CheckScatterSizes(int32_t rank, int32_t world_size, absl::Span<const float> mine,
                                      absl::Span<const float> sum) {
  const auto nodes = static_cast<size_t>(NodeCount(rank, world_size));
  if (mine.size() == nodes * static_cast<size_t>(world_size) * sum.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("reduce-scatter of ", mine.size(), " numbers, not ", nodes,
                                                 " nodes x ", world_size, " ranks x ", sum.size()));
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_VIEW_H_
