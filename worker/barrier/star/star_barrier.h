// The barrier over TCP: contributions fold up a tree, the result comes back down.
//
// Cost: two messages per rank and all-reduce, no allocation. Activations (star_collectives.cc) go through
// rank 0 too, which adds up: enough for small models and tests on CPUs. A rank that leaves
// appears as the end of its connection. Every failure is passed on to all neighbours at once, so no rank
// waits for a deadline because another rank failed. Threads: as barrier.h says.
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

// The ranks at the other ends of a rank's links.
struct StarRanks {
  // -1 on rank 0.
  int32_t parent = -1;
  // Of links.children[0]; the others follow.
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

  // A frame and its payload on their way. `slot` is the neighbour's index in the poll set.
  struct Incoming {
    size_t slot;
    WireType type;
    absl::Span<uint8_t> payload;
    // The frame is here.
    bool begun = false;
    size_t have = 0;
    bool done = false;
  };
  struct Outgoing {
    size_t slot;
    std::array<uint8_t, kFrameBytes> frame;
    absl::Span<const uint8_t> payload;
    // Of both.
    size_t sent = 0;
    bool done = false;
  };

  absl::Status Gather(int64_t step, int64_t deadline_ns, GroupView& view);
  absl::StatusOr<GroupView> AwaitResult(int64_t step, int64_t deadline_ns);
  // Folds the contributions of the children that poll found ready and had not arrived; returns how many.
  absl::StatusOr<size_t> TakeChildren(int64_t step, GroupView& view);
  // Reads what `from` (rank `rank`) sent; nothing while incomplete. An error frame or nonsense is an error.
  absl::StatusOr<std::optional<Frame>> Receive(Connection& from, int32_t rank, WireType expected,
                                               int64_t step);
  // Which child's contribution is missing, for the message.
  std::vector<int32_t> Missing() const;

  // --- activations: star_collectives.cc ---

  absl::Status Gather(int64_t step, absl::Span<const float> mine, absl::Span<float> all, int64_t deadline_ns);
  absl::Status Scatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                       int64_t deadline_ns);
  // Puts what the subtree brings together in up_, and sends it to the parent if there is one. `unit` gives
  // the numbers that a rank brings.
  template <typename Unit>
  absl::Status BringUp(int64_t step, WireType type, absl::Span<const float> mine, const Unit& unit,
                       int64_t deadline_ns);
  // down_ = the sums for all ranks. Of rank 0.
  void AddUp(size_t n);
  void Expect(size_t slot, WireType type, absl::Span<float> payload);
  void Post(size_t slot, WireType type, int64_t step, absl::Span<const float> payload);
  // Moves everything that is expected and posted. With `listen`, news from the other neighbours are taken for
  // what they can only be: bad.
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
  // Ends this barrier: keeps the reason and informs all neighbours.
  absl::Status Fail(const absl::Status& status);
  Frame FrameOf(WireType type, int64_t step, const GroupView& view) const;

  const uint64_t epoch_;
  const int32_t rank_;
  const int32_t world_size_;
  const StarRanks ranks_;
  Links links_;
  const std::shared_ptr<Signal> abort_;
  // abort, parent, children; poll skips the parent's -1 on rank 0.
  std::vector<pollfd> poll_set_;
  // By child: its contribution to the present step is in.
  std::vector<bool> arrived_;
  // Calls so far.
  uint64_t call_ = 0;
  absl::Status failure_;
  // The rank where the failure began, if a peer named it.
  int32_t culprit_;

  // This rank and all ranks below it (AppendSubtree).
  std::vector<int32_t> subtree_;
  std::vector<Incoming> incoming_;
  std::vector<Outgoing> outgoing_;
  std::vector<pollfd> exchange_poll_set_;
  // What the subtree brings, and gets; by subtree_.
  std::vector<float> up_, down_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_BARRIER_STAR_STAR_BARRIER_H_
