// The barrier: the collective in which all ranks of a group meet once per step. One interface to NCCL, the
// CPU collective over TCP (star or tree) and the in-process one. The all-reduce carries each rank's load and
// local time, so that every rank learns the group's maximum and sum. Every call names its step; a rank that
// is at another step ends the barrier (INTERNAL). A BarrierEndpoint lives as long as the rank. In each epoch
// every rank calls Offer; the router passes rank 0's offer to all as the communicator id; every rank calls
// Form and gets a Barrier for that epoch. Destroying a Barrier makes the peers' AllReduce fail fast. Threads:
// one, except for Barrier::Abort and Form's stop token, which any thread may use. Builds without gRPC.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace bfio::worker {

// The ranks that an error of the barrier names as missing, in the status's payload: neighbours that did not
// arrive. From all ranks' reports the router can continue without a rank that is unreachable for the others.

// Adds the missing ranks to an error. REQUIRES: `status` is an error.
absl::Status BlameMissing(absl::Status status, const std::vector<int32_t>& ranks);

// The ranks that BlameMissing added; empty if none.
std::vector<int32_t> MissingRanks(const absl::Status& status);

// A bit of Contribution::stop_flags: the rank's engine has failed, so its result of the step is missing.
inline constexpr uint32_t kStopEngineFailed = 1;

// What a rank contributes to a step's barrier.
struct Contribution {
  // L_g of the step, in tokens.
  int64_t load_tokens = 0;
  // Duration of the step's local compute.
  int64_t local_ns = 0;
  // Requests that stay active after the step, plus assignments already received for a later step. The group
  // is idle when the sum over its ranks is 0.
  int64_t active = 0;
  // Bits kStop...; after a step in which any rank sets one, all ranks leave the epoch together.
  uint32_t stop_flags = 0;
};

// The result of a step's barrier, the same on all ranks.
struct GroupView {
  int64_t max_load_tokens = 0;
  int64_t sum_load_tokens = 0;
  int64_t max_local_ns = 0;
  int64_t sum_local_ns = 0;
  int64_t sum_active = 0;
  // Bitwise or over all ranks.
  uint32_t stop_flags = 0;
};

class Barrier {
 public:
  virtual ~Barrier() = default;

  // Meets the other ranks in step `step` of this epoch. DEADLINE_EXCEEDED: some rank did not arrive in time;
  // UNAVAILABLE: a peer has left or failed; CANCELLED: after Abort; INTERNAL: the ranks disagree about the
  // step. After any error this barrier is unusable: every later call fails, and so do the peers' calls, soon
  // and not only at their deadline.
  virtual absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine,
                                              absl::Duration timeout) = 0;

  // Makes a running or later call return CANCELLED soon. Any thread may call it.
  virtual void Abort() = 0;
};

struct GroupSpec {
  uint64_t epoch = 0;
  int32_t rank = 0;
  int32_t world_size = 1;
  // Rank 0's offer.
  std::string communicator_id;
};

class BarrierEndpoint {
 public:
  virtual ~BarrierEndpoint() = default;

  // "star", "star_tls" or "nccl".
  virtual absl::string_view name() const = 0;

  // The data with which other ranks connect to this rank if it becomes rank 0; valid for one epoch.
  virtual absl::StatusOr<std::string> Offer() = 0;

  // Forms the group; all ranks must call it with the same epoch. DEADLINE_EXCEEDED or UNAVAILABLE: other
  // ranks do not connect; CANCELLED, soon after a stop is requested: the epoch became obsolete before it was
  // formed; INVALID_ARGUMENT: `group` is inconsistent.
  virtual absl::StatusOr<std::unique_ptr<Barrier>> Form(const GroupSpec& group, absl::Duration timeout,
                                                        std::stop_token stop) = 0;
};

// Combines contributions into the group's view; the check that every barrier makes. Pure functions.
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
