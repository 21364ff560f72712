// The barrier over TCP: contributions are combined up a tree, and the result is sent down.
//
// Cost: two messages per rank and all-reduce, no allocation. Activations (star_collectives.cc) also go
// through rank 0, which sums them: enough for small models and tests on CPUs. A rank that leaves is seen as
// the end of its connection. Every failure is passed on to all neighbours at once, so no rank waits for a
// deadline because another rank failed. Threads: as in barrier.h.
#ifndef BFIO_WORKER_BARRIER_STAR_STAR_BARRIER_H_
#define BFIO_WORKER_BARRIER_STAR_STAR_BARRIER_H_

#include <array>
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

// The ranks of a rank's neighbours.
struct StarRanks {
  // -1 on rank 0.
  int32_t parent = -1;
  // The rank of links.children[0]; the other children have consecutive ranks.
  int32_t first_child = 0;
  int32_t fan_out = 1;
};

class StarBarrier final : public Barrier {
 public:
  // `abort` may be set already.
  StarBarrier(const GroupSpec& group, StarRanks ranks, Links links, std::shared_ptr<Signal> abort);
  ~StarBarrier() override;

  absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine,
                                      absl::Duration timeout) override;
  absl::Status AllGather(int64_t step, absl::Span<const float> mine, absl::Span<float> all,
                         absl::Duration timeout) override;
  absl::Status ReduceScatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                             absl::Duration timeout) override;
  void Abort() override { abort_->Set(); }

 private:
  // Index of the poll set's entries.
  static constexpr size_t kAbort = 0, kParent = 1, kFirstChild = 2;

  // A partly received frame with its payload. `slot` is the neighbour's index in the poll set.
  struct Incoming {
    size_t slot;
    WireType type;
    absl::Span<uint8_t> payload;
    // Whether the frame has been received.
    bool begun = false;
    size_t have = 0;
    bool done = false;
  };
  struct Outgoing {
    size_t slot;
    std::array<uint8_t, kFrameBytes> frame;
    absl::Span<const uint8_t> payload;
    // Bytes sent of frame and payload together.
    size_t sent = 0;
    bool done = false;
  };

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

  // --- activations: star_collectives.cc ---

  absl::Status Gather(int64_t step, absl::Span<const float> mine, absl::Span<float> all, int64_t deadline_ns);
  absl::Status Scatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                       int64_t deadline_ns);
  // Collects the contributions of the subtree in up_, and sends them to the parent if there is one. `unit`
  // returns a rank's contribution.
  template <typename Unit>
  absl::Status BringUp(int64_t step, WireType type, absl::Span<const float> mine, const Unit& unit,
                       int64_t deadline_ns);
  // down_ = the sums for all ranks. Only on rank 0.
  void AddUp(size_t n);
  void Expect(size_t slot, WireType type, absl::Span<float> payload);
  void Post(size_t slot, WireType type, int64_t step, absl::Span<const float> payload);
  // Completes all expected and posted messages. With `listen`, messages of the other neighbours are also
  // read: they can only be errors.
  absl::Status Exchange(int64_t step, int64_t deadline_ns, bool listen);
  void FillExchangePollSet(bool listen);
  absl::Status Serve(size_t slot, short events, int64_t step);
  absl::Status Advance(Incoming& in, int64_t step);
  absl::Status Advance(Outgoing& out, int64_t step);
  bool UnderWay() const;
  Connection& At(size_t slot) {
    return slot == kParent ? links_.parent : links_.children[slot - kFirstChild];
  }
  int32_t RankAt(size_t slot) const {
    return slot == kParent ? ranks_.parent : ranks_.first_child + static_cast<int32_t>(slot - kFirstChild);
  }

  // --- ends ---
  // Ends this barrier: stores the error and sends it to all neighbours.
  absl::Status Fail(const absl::Status& status);
  Frame FrameOf(WireType type, int64_t step, const GroupView& view) const;

  const uint64_t epoch_;
  const int32_t rank_;
  const int32_t world_size_;
  const StarRanks ranks_;
  Links links_;
  const std::shared_ptr<Signal> abort_;
  // Abort signal, parent, children; poll skips the parent's -1 on rank 0.
  std::vector<pollfd> poll_set_;
  // By child: whether its contribution to the current step has arrived.
  std::vector<bool> arrived_;
  // Number of calls so far.
  uint64_t call_ = 0;
  absl::Status failure_;
  // The rank where the failure began, if a peer named one.
  int32_t culprit_;

  // This rank and all ranks below it (AppendSubtree).
  std::vector<int32_t> subtree_;
  std::vector<Incoming> incoming_;
  std::vector<Outgoing> outgoing_;
  std::vector<pollfd> exchange_poll_set_;
  // Contributions and results of the subtree, in the order of subtree_.
  std::vector<float> up_, down_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STAR_STAR_BARRIER_H_
