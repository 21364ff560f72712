// The barrier over TCP: contributions fold up a tree, the result comes back down.
//
// Cost: two messages per rank and step, no allocation. A rank that leaves is seen as the end of its
// connection; every failure is passed on to all neighbours at once, so nobody waits for a deadline because of
// somebody else's death. Threads: as barrier.h says.
#ifndef BFIO_WORKER_BARRIER_STAR_STAR_BARRIER_H_
#define BFIO_WORKER_BARRIER_STAR_STAR_BARRIER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/barrier/barrier.h"
#include "worker/barrier/star/rendezvous.h"
#include "worker/barrier/star/socket.h"

namespace bfio::worker {

// The ranks at the other ends of a rank's links.
struct StarRanks {
  // -1 on rank 0.
  int32_t parent = -1;
  // Of links.children[0]; the others follow.
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
  // Folds the contributions of the children that poll found ready and had not arrived; returns how many.
  absl::StatusOr<size_t> TakeChildren(int64_t step, GroupView& view);
  // Reads what `from` (rank `rank`) sent; nothing while incomplete. An error frame or nonsense is an error.
  absl::StatusOr<std::optional<Frame>> Receive(Connection& from, int32_t rank, WireType expected,
                                               int64_t step);
  // Which child's contribution is missing, for the message.
  std::string Missing() const;
  // Ends this barrier: remembers why and tells all neighbours.
  absl::Status Fail(const absl::Status& status);
  Frame FrameOf(WireType type, int64_t step, const GroupView& view) const;

  const uint64_t epoch_;
  const int32_t rank_;
  const StarRanks ranks_;
  Links links_;
  const std::shared_ptr<Signal> abort_;
  // abort, parent, children; poll skips the parent's -1 on rank 0.
  std::vector<pollfd> poll_set_;
  // By child: its contribution to the present step is in.
  std::vector<bool> arrived_;
  absl::Status failure_;
  // Where the trouble began, if a peer told.
  int32_t culprit_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STAR_STAR_BARRIER_H_
