#include "worker/barrier/star/star_barrier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace bfio::worker {
namespace {

// The status for a peer's failure. Its deadline or a disagreement concerns all ranks; any other error means
// that it left.
absl::Status PeerFailure(const Frame& frame) {
  switch (frame.code) {
    case absl::StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", frame.rank, " timed out waiting for another rank"));
    case absl::StatusCode::kInternal:
      return absl::InternalError(absl::StrCat("rank ", frame.rank, " found that ranks disagree"));
    default:
      return absl::UnavailableError(absl::StrCat("rank ", frame.rank, " left the barrier or lost a peer"));
  }
}

}  // namespace

StarBarrier::StarBarrier(const GroupSpec& group, StarRanks ranks, Links links, std::shared_ptr<Signal> abort)
    : epoch_(group.epoch),
      rank_(group.rank),
      ranks_(ranks),
      links_(std::move(links)),
      abort_(std::move(abort)),
      culprit_(group.rank) {
  poll_set_.push_back({abort_->fd(), POLLIN, 0});
  poll_set_.push_back({links_.parent.fd(), POLLIN, 0});
  arrived_.resize(links_.children.size());
  for (const Connection& child : links_.children) poll_set_.push_back({child.fd(), POLLIN, 0});
}

StarBarrier::~StarBarrier() {
  if (failure_.ok()) Fail(absl::UnavailableError("left")).IgnoreError();
}

absl::StatusOr<GroupView> StarBarrier::AllReduce(int64_t step, const Contribution& mine,
                                                 absl::Duration timeout) {
  if (!failure_.ok()) return failure_;
  const int64_t deadline_ns = MonotonicNs() + absl::ToInt64Nanoseconds(timeout);
  GroupView view = ViewOf(mine);
  if (absl::Status status = Gather(step, deadline_ns, view); !status.ok()) return Fail(status);
  if (links_.parent.valid()) {
    if (!links_.parent.Send(Encode(FrameOf(WireType::kReduce, step, view)))) {
      // The parent may have sent the reason before it left.
      auto told = Receive(links_.parent, ranks_.parent, WireType::kResult, step);
      return Fail(told.ok() ? absl::UnavailableError("the parent rank disconnected") : told.status());
    }
    auto result = AwaitResult(step, deadline_ns);
    if (!result.ok()) return Fail(result.status());
    view = *result;
  }
  const auto bytes = Encode(FrameOf(WireType::kResult, step, view));
  // A child that is gone does not invalidate a complete step; the next step detects it.
  for (Connection& child : links_.children) child.Send(bytes);
  return view;
}

absl::Status StarBarrier::Gather(int64_t step, int64_t deadline_ns, GroupView& view) {
  arrived_.assign(arrived_.size(), false);
  size_t missing = arrived_.size();
  // Polls at least once, to detect an Abort before the call and a failure of the parent.
  do {
    const bool ready = Poll(absl::MakeSpan(poll_set_), missing > 0 ? deadline_ns : 0);
    if (!ready && missing == 0) break;
    if (!ready) {
      const std::vector<int32_t> late = Missing();
      return BlameMissing(absl::DeadlineExceededError(
                              absl::StrCat("rank ", absl::StrJoin(late, " "), " did not reach step ", step)),
                          late);
    }
    if (poll_set_[kAbort].revents != 0) return absl::CancelledError("barrier aborted");
    // Before the parent has this rank's contribution, it sends only errors.
    if (poll_set_[kParent].revents != 0) {
      BFIO_RETURN_IF_ERROR(Receive(links_.parent, ranks_.parent, WireType::kError, step).status());
    }
    auto taken = TakeChildren(step, view);
    // A child's deadline may pass before this rank's: it began to wait earlier for the same ranks.
    if (absl::IsDeadlineExceeded(taken.status())) return BlameMissing(taken.status(), Missing());
    if (!taken.ok()) return taken.status();
    missing -= *taken;
  } while (missing > 0);
  return absl::OkStatus();
}

absl::StatusOr<size_t> StarBarrier::TakeChildren(int64_t step, GroupView& view) {
  size_t taken = 0;
  for (size_t i = 0; i < arrived_.size(); ++i) {
    if (poll_set_[kFirstChild + i].revents == 0) continue;
    // A child that has contributed sends only errors until it gets the result.
    const WireType expected = arrived_[i] ? WireType::kError : WireType::kReduce;
    BFIO_ASSIGN_OR_RETURN(auto frame, Receive(links_.children[i],
                                              ranks_.first_child + static_cast<int32_t>(i), expected, step));
    if (!frame.has_value()) continue;
    Fold(frame->view, view);
    arrived_[i] = true;
    ++taken;
  }
  return taken;
}

absl::StatusOr<GroupView> StarBarrier::AwaitResult(int64_t step, int64_t deadline_ns) {
  for (;;) {
    if (!Poll(absl::MakeSpan(poll_set_), deadline_ns)) {
      return absl::DeadlineExceededError(
          absl::StrCat("the result of step ", step, " did not arrive in time"));
    }
    if (poll_set_[kAbort].revents != 0) return absl::CancelledError("barrier aborted");
    if (poll_set_[kParent].revents != 0) {
      BFIO_ASSIGN_OR_RETURN(auto frame, Receive(links_.parent, ranks_.parent, WireType::kResult, step));
      if (frame.has_value()) return frame->view;
    }
    GroupView ignored;
    BFIO_RETURN_IF_ERROR(TakeChildren(step, ignored).status());
  }
}

absl::StatusOr<std::optional<Frame>> StarBarrier::Receive(Connection& from, int32_t rank, WireType expected,
                                                          int64_t step) {
  switch (from.ReadMessage(kFrameBytes)) {
    case Connection::Read::kPartial: return std::optional<Frame>();
    case Connection::Read::kClosed:
      culprit_ = rank;
      return absl::UnavailableError(absl::StrCat("rank ", rank, " disconnected"));
    case Connection::Read::kMessage: break;
  }
  const auto frame = DecodeFrame(from.message());
  if (!frame.has_value()) return absl::UnavailableError(absl::StrCat("invalid message from rank ", rank));
  if (frame->epoch != epoch_) {
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, " sent a message of epoch ", frame->epoch, " in epoch ", epoch_));
  }
  if (frame->type == WireType::kError) {
    culprit_ = frame->rank;
    return PeerFailure(*frame);
  }
  if (frame->type != expected || frame->step != step || frame->rank != rank) {
    return absl::InternalError(absl::StrCat("ranks disagree: rank ", rank, " is at step ", frame->step,
                                            ", rank ", rank_, " at step ", step));
  }
  return frame;
}

std::vector<int32_t> StarBarrier::Missing() const {
  std::vector<int32_t> ranks;
  for (size_t i = 0; i < links_.children.size(); ++i) {
    if (!arrived_[i]) ranks.push_back(ranks_.first_child + static_cast<int32_t>(i));
  }
  return ranks;
}

absl::Status StarBarrier::Fail(const absl::Status& status) {
  failure_ = status;
  Frame frame = FrameOf(WireType::kError, 0, GroupView{});
  frame.rank = culprit_;
  frame.code = status.code();
  const auto bytes = Encode(frame);
  if (links_.parent.valid()) links_.parent.Send(bytes);
  for (Connection& child : links_.children) child.Send(bytes);
  // A connection that is closed with unread bytes is reset, and the peer may lose the error frame. It then
  // sees the reset, which means the same.
  links_.parent.Close();
  for (Connection& child : links_.children) child.Close();
  return failure_;
}

Frame StarBarrier::FrameOf(WireType type, int64_t step, const GroupView& view) const {
  return {type, epoch_, rank_, absl::StatusCode::kOk, step, view};
}

}  // namespace bfio::worker
