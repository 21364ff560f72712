// All-gather and reduce-scatter of the star barrier.
//
// Upwards every rank sends one message: the contributions of its subtree, rank after rank in AppendSubtree's
// order. Rank 0 puts them in rank order, or sums them in the summation tree's order. Downwards every child
// gets the whole result (all-gather), or its subtree's part (reduce-scatter). No size is taken from a
// message: it must be the size that this rank expects.
#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/barrier/star/star_barrier.h"
#include "worker/barrier/view.h"

namespace bfio::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads travel as they are in memory");

absl::Span<uint8_t> Bytes(absl::Span<float> numbers) {
  return {reinterpret_cast<uint8_t*>(numbers.data()), numbers.size() * sizeof(float)};
}
absl::Span<const uint8_t> Bytes(absl::Span<const float> numbers) {
  return {reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size() * sizeof(float)};
}

}  // namespace

absl::Status StarBarrier::AllGather(int64_t step, absl::Span<const float> mine, absl::Span<float> all,
                                    absl::Duration timeout) {
  if (!failure_.ok()) return failure_;
  ++call_;
  absl::Status status = CheckGatherSizes(world_size_, mine, all);
  if (status.ok()) {
    status = Gather(step, mine, all, MonotonicNs() + absl::ToInt64Nanoseconds(timeout));
  }
  return status.ok() ? status : Fail(status);
}

absl::Status StarBarrier::ReduceScatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                                        absl::Duration timeout) {
  if (!failure_.ok()) return failure_;
  ++call_;
  absl::Status status = CheckScatterSizes(rank_, world_size_, mine, sum);
  if (status.ok()) {
    status = Scatter(step, mine, sum, MonotonicNs() + absl::ToInt64Nanoseconds(timeout));
  }
  return status.ok() ? status : Fail(status);
}

absl::Status StarBarrier::Gather(int64_t step, absl::Span<const float> mine, absl::Span<float> all,
                                 int64_t deadline_ns) {
  const size_t n = mine.size();
  const auto unit = [&](int32_t) { return n; };
  BFIO_RETURN_IF_ERROR(BringUp(step, WireType::kGather, mine, unit, deadline_ns));
  if (links_.parent.valid()) {
    Expect(kParent, WireType::kGathered, all);
    BFIO_RETURN_IF_ERROR(Exchange(step, deadline_ns, true));
  } else {
    for (size_t i = 0; i < subtree_.size(); ++i) {
      std::copy_n(up_.data() + i * n, n, all.data() + static_cast<size_t>(subtree_[i]) * n);
    }
  }
  for (size_t i = 0; i < links_.children.size(); ++i) Post(kFirstChild + i, WireType::kGathered, step, all);
  return Exchange(step, deadline_ns, false);
}

absl::Status StarBarrier::Scatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                                  int64_t deadline_ns) {
  const size_t n = sum.size();
  const auto world = static_cast<size_t>(world_size_);
  const auto unit = [&](int32_t rank) {
    return static_cast<size_t>(NodeCount(rank, world_size_)) * world * n;
  };
  BFIO_RETURN_IF_ERROR(BringUp(step, WireType::kScatter, mine, unit, deadline_ns));
  down_.resize(subtree_.size() * n);
  if (links_.parent.valid()) {
    Expect(kParent, WireType::kScattered, absl::MakeSpan(down_));
    BFIO_RETURN_IF_ERROR(Exchange(step, deadline_ns, true));
  } else {
    AddUp(n);
  }
  std::copy_n(down_.data(), n, sum.data());
  size_t at = n;
  for (size_t i = 0; i < links_.children.size(); ++i) {
    std::vector<int32_t> below;
    AppendSubtree(RankAt(kFirstChild + i), ranks_.fan_out, world_size_, below);
    Post(kFirstChild + i, WireType::kScattered, step,
         absl::MakeConstSpan(down_).subspan(at, below.size() * n));
    at += below.size() * n;
  }
  return Exchange(step, deadline_ns, false);
}

void StarBarrier::AddUp(size_t n) {
  const auto world = static_cast<size_t>(world_size_);
  // Start of each rank's nodes in up_.
  std::vector<const float*> brought(world);
  const float* next = up_.data();
  for (const int32_t rank : subtree_) {
    brought[rank] = next;
    next += static_cast<size_t>(NodeCount(rank, world_size_)) * world * n;
  }
  std::vector<TermRange> nodes;
  // Sums of node i, for rank 0.
  std::vector<const float*> sums;
  for (int32_t rank = 0; rank < world_size_; ++rank) {
    const float* at = brought[rank];
    for (const TermRange& node : NodesOf(TermsOf(rank, world_size_))) {
      nodes.push_back(node);
      sums.push_back(at);
      at += world * n;
    }
  }
  std::vector<const float*> of_rank(sums.size());
  for (size_t i = 0; i < subtree_.size(); ++i) {
    const size_t offset = static_cast<size_t>(subtree_[i]) * n;
    for (size_t node = 0; node < sums.size(); ++node) of_rank[node] = sums[node] + offset;
    SumTree(nodes, of_rank, absl::MakeSpan(down_).subspan(i * n, n));
  }
}

template <typename Unit>
absl::Status StarBarrier::BringUp(int64_t step, WireType type, absl::Span<const float> mine, const Unit& unit,
                                  int64_t deadline_ns) {
  size_t total = 0;
  for (const int32_t rank : subtree_) total += unit(rank);
  up_.resize(total);
  std::copy(mine.begin(), mine.end(), up_.begin());
  size_t at = mine.size();
  for (size_t i = 0; i < links_.children.size(); ++i) {
    std::vector<int32_t> below;
    AppendSubtree(RankAt(kFirstChild + i), ranks_.fan_out, world_size_, below);
    size_t brings = 0;
    for (const int32_t rank : below) brings += unit(rank);
    Expect(kFirstChild + i, type, absl::MakeSpan(up_).subspan(at, brings));
    at += brings;
  }
  BFIO_RETURN_IF_ERROR(Exchange(step, deadline_ns, true));
  if (links_.parent.valid()) Post(kParent, type, step, up_);
  return Exchange(step, deadline_ns, true);
}

// --- messages in flight ---

void StarBarrier::Expect(size_t slot, WireType type, absl::Span<float> payload) {
  incoming_.push_back({slot, type, Bytes(payload)});
}

void StarBarrier::Post(size_t slot, WireType type, int64_t step, absl::Span<const float> payload) {
  Frame frame = FrameOf(type, step, GroupView{});
  frame.payload = payload.size();
  outgoing_.push_back({slot, Encode(frame), Bytes(payload)});
}

bool StarBarrier::UnderWay() const {
  const auto under_way = [](const auto& message) { return !message.done; };
  return std::any_of(incoming_.begin(), incoming_.end(), under_way) ||
         std::any_of(outgoing_.begin(), outgoing_.end(), under_way);
}

absl::Status StarBarrier::Exchange(int64_t step, int64_t deadline_ns, bool listen) {
  absl::Status status;
  // Polls at least once, to detect an Abort before the call.
  for (bool first = true; status.ok() && (first || UnderWay()); first = false) {
    FillExchangePollSet(listen);
    const bool ready = Poll(absl::MakeSpan(exchange_poll_set_), UnderWay() ? deadline_ns : 0);
    if (!ready && !UnderWay()) break;
    if (!ready) {
      status = absl::DeadlineExceededError(absl::StrCat("an exchange of step ", step, " timed out"));
    } else if (exchange_poll_set_[kAbort].revents != 0) {
      status = absl::CancelledError("barrier aborted");
    }
    for (size_t slot = kParent; slot < exchange_poll_set_.size() && status.ok(); ++slot) {
      const short events = exchange_poll_set_[slot].revents;
      if (events != 0) status = Serve(slot, events, step);
    }
  }
  incoming_.clear();
  outgoing_.clear();
  return status;
}

void StarBarrier::FillExchangePollSet(bool listen) {
  exchange_poll_set_ = poll_set_;
  for (size_t slot = kParent; slot < exchange_poll_set_.size(); ++slot) {
    exchange_poll_set_[slot].events = listen ? POLLIN : 0;
  }
  for (const Incoming& in : incoming_) {
    if (!in.done) exchange_poll_set_[in.slot].events |= POLLIN;
  }
  for (const Outgoing& out : outgoing_) {
    if (!out.done) exchange_poll_set_[out.slot].events |= POLLOUT;
  }
  // poll reports the end of a connection even when no events are requested; -1 prevents that.
  for (pollfd& fd : exchange_poll_set_) {
    if (fd.events == 0) fd.fd = -1;
  }
}

absl::Status StarBarrier::Serve(size_t slot, short events, int64_t step) {
  for (Outgoing& out : outgoing_) {
    if (out.slot != slot || out.done) continue;
    if ((events & ~POLLIN) != 0) return Advance(out, step);
  }
  for (Incoming& in : incoming_) {
    if (in.slot == slot && !in.done) return Advance(in, step);
  }
  // A peer whose messages are complete sends nothing more during the call, except errors.
  return Receive(At(slot), RankAt(slot), WireType::kError, step).status();
}

absl::Status StarBarrier::Advance(Incoming& in, int64_t step) {
  if (!in.begun) {
    BFIO_ASSIGN_OR_RETURN(const auto frame, Receive(At(in.slot), RankAt(in.slot), in.type, step));
    if (!frame.has_value()) return absl::OkStatus();
    const uint64_t expected = in.payload.size() / sizeof(float);
    if (frame->payload != expected) {
      return absl::InternalError(absl::StrCat("ranks disagree: rank ", RankAt(in.slot), " sent ",
                                              frame->payload, " numbers in step ", step, ", rank ", rank_,
                                              " expects ", expected));
    }
    in.begun = true;
  }
  while (in.have < in.payload.size()) {
    const auto got = At(in.slot).ReadSome(in.payload.subspan(in.have));
    if (!got.has_value()) {
      culprit_ = RankAt(in.slot);
      return absl::UnavailableError(absl::StrCat("rank ", culprit_, " disconnected"));
    }
    if (*got == 0) return absl::OkStatus();
    in.have += *got;
  }
  in.done = true;
  return absl::OkStatus();
}

absl::Status StarBarrier::Advance(Outgoing& out, int64_t step) {
  Connection& to = At(out.slot);
  const size_t total = out.frame.size() + out.payload.size();
  while (out.sent < total) {
    const auto rest = out.sent < out.frame.size() ? absl::MakeConstSpan(out.frame).subspan(out.sent)
                                                  : out.payload.subspan(out.sent - out.frame.size());
    const auto sent = to.SendSome(rest);
    if (!sent.has_value()) {
      // A child that is gone does not invalidate a complete call; the next call detects it.
      out.done = true;
      to.set_mid_message(true);
      if (out.slot != kParent) return absl::OkStatus();
      // The parent may have sent the reason before it left.
      const auto told = Receive(to, ranks_.parent, WireType::kError, step);
      return told.ok() ? absl::UnavailableError("the parent rank disconnected") : told.status();
    }
    if (*sent == 0) return absl::OkStatus();
    out.sent += *sent;
    to.set_mid_message(out.sent < total);
  }
  out.done = true;
  return absl::OkStatus();
}

}  // namespace bfio::worker
