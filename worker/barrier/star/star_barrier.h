// The barrier over TCP: contributions are combined up a tree, and the result is sent down. Cost: two messages
// per rank and all-reduce, no allocation. A rank that leaves is seen as the end of its connection. Every
// failure is passed on to all neighbours at once, so no rank waits for a deadline because another rank
// failed. Threads: as in barrier.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/star/rendezvous.h"
#include "worker/barrier/star/socket.h"

namespace bfio::worker {

// The ranks of a rank's neighbours.
struct StarRanks {
  // -1 on rank 0.
  int32_t parent = -1;
  // The rank of links.children[0]; the other children have consecutive ranks.
  int32_t first_child = 0;
};

class StarBarrier final : public Barrier {
 public:
  // `abort` may be set already.
  StarBarrier(const GroupSpec& group, StarRanks ranks, Links links, std::shared_ptr<Signal> abort);
  ~StarBarrier() override;

  absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine,
                                      absl::Duration timeout) override;
  void Abort() override { abort_->Set(); }

 private:
  // Index of the poll set's entries.
  static constexpr size_t kAbort = 0, kParent = 1, kFirstChild = 2;

  absl::Status Gather(int64_t step, int64_t deadline_ns, GroupView& view);
  absl::StatusOr<GroupView> AwaitResult(int64_t step, int64_t deadline_ns);
  // Combines the contributions of children that poll reported as ready and that had not arrived; returns
  // their number.
  absl::StatusOr<size_t> TakeChildren(int64_t step, GroupView& view);
  // Reads a frame from `from` (rank `rank`); absent while incomplete. An error frame or a malformed one is an
  // error.
  absl::StatusOr<std::optional<Frame>> Receive(Connection& from, int32_t rank, WireType expected,
                                               int64_t step);
  // The children whose contribution is missing, for the message.
  std::vector<int32_t> Missing() const;

  // Ends this barrier: stores the error and sends it to all neighbours.
  absl::Status Fail(const absl::Status& status);
  Frame FrameOf(WireType type, int64_t step, const GroupView& view) const;

  const uint64_t epoch_;
  const int32_t rank_;
  const StarRanks ranks_;
  Links links_;
  const std::shared_ptr<Signal> abort_;
  // Abort signal, parent, children; poll skips the parent's -1 on rank 0.
  std::vector<pollfd> poll_set_;
  // By child: whether its contribution to the current step has arrived.
  std::vector<bool> arrived_;
  absl::Status failure_;
  // The rank where the failure began, if a peer named one.
  int32_t culprit_;
};

}  // namespace bfio::worker
