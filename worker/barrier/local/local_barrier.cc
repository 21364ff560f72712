#include "worker/barrier/local/local_barrier.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/barrier/view.h"

namespace bfio::worker {

// The shared state of one epoch. The first failure is final: every rank gets it from then on.
class LocalGroup {
 public:
  explicit LocalGroup(const GroupSpec& spec)
      : world_size_(spec.world_size), signature_(spec.signature), present_(spec.world_size, false) {
    for (auto& half : brought_) half.resize(present_.size());
  }

  int32_t world_size() const { return world_size_; }

  // Waits until all ranks are here.
  absl::Status Join(const GroupSpec& spec, absl::Time deadline) {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    if (spec.world_size != static_cast<int32_t>(present_.size())) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", spec.rank, " expects a group of ",
                                                     spec.world_size, " ranks, the other ranks one of ",
                                                     present_.size()));
    }
    if (present_[spec.rank])
      return absl::InvalidArgumentError(absl::StrCat("rank ", spec.rank, " joined twice"));
    present_[spec.rank] = true;
    alike_ = alike_ && spec.signature == signature_;
    if (++joined_ == spec.world_size) changed_.SignalAll();
    while (joined_ < spec.world_size && failure_.ok()) {
      if (changed_.WaitWithDeadline(&mutex_, deadline) && joined_ < spec.world_size && failure_.ok()) {
        return FailLocked(absl::DeadlineExceededError(
            absl::StrCat(joined_, " of ", spec.world_size, " ranks joined epoch ", spec.epoch)));
      }
    }
    if (joined_ == spec.world_size && !alike_) return SignatureError(spec.epoch);
    // A group that was complete has formed even if it has failed since; the next AllReduce reports the
    // failure.
    return joined_ == spec.world_size ? absl::OkStatus() : failure_;
  }

  absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine, absl::Time deadline) {
    GroupView result;
    const auto bring = [&](bool first) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (first) {
        folded_ = ViewOf(mine);
      } else {
        Fold(ViewOf(mine), folded_);
      }
    };
    const auto take = [&](bool last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (last) result_ = folded_;
      result = result_;
    };
    BFIO_RETURN_IF_ERROR(Meet({Kind::kReduce, step, 0}, deadline, bring, take));
    return result;
  }

  absl::Status AllGather(int64_t step, int32_t rank, absl::Span<const float> mine, absl::Span<float> all,
                         absl::Time deadline) {
    size_t half = 0;
    const auto bring = [&](bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { half = Bring(rank, mine); };
    const auto take = [&](bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      float* to = all.data();
      for (const std::vector<float>& one : brought_[half]) to = std::copy(one.begin(), one.end(), to);
    };
    return Meet({Kind::kGather, step, mine.size()}, deadline, bring, take);
  }

  absl::Status ReduceScatter(int64_t step, int32_t rank, absl::Span<const float> mine, absl::Span<float> sum,
                             absl::Time deadline) {
    size_t half = 0;
    const auto bring = [&](bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { half = Bring(rank, mine); };
    const auto take = [&](bool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const auto world = static_cast<int32_t>(present_.size());
      std::vector<TermRange> nodes;
      std::vector<const float*> sums;
      for (int32_t other = 0; other < world; ++other) {
        const float* at = brought_[half][other].data() + static_cast<size_t>(rank) * sum.size();
        for (const TermRange& node : NodesOf(TermsOf(other, world))) {
          nodes.push_back(node);
          sums.push_back(at);
          at += static_cast<size_t>(world) * sum.size();
        }
      }
      SumTree(nodes, sums, sum);
    };
    return Meet({Kind::kScatter, step, sum.size()}, deadline, bring, take);
  }

  void Fail(const absl::Status& status) {
    MutexLock lock(&mutex_);
    FailLocked(status).IgnoreError();
  }

 private:
  enum class Kind { kReduce, kGather, kScatter };
  // Properties of a call that must be equal on all ranks.
  struct Call {
    Kind kind = Kind::kReduce;
    int64_t step = 0;
    size_t size = 0;
    bool operator==(const Call&) const = default;
  };

  // Runs a rank's `bring` when it arrives and its `take` once all ranks have arrived; the arguments say
  // whether it is the first to bring, and the last to arrive. Contributions to a meeting stay until the
  // meeting after the next one begins: by then all ranks have taken.
  absl::Status Meet(const Call& call, absl::Time deadline, absl::FunctionRef<void(bool)> bring,
                    absl::FunctionRef<void(bool)> take) {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    if (arrived_ == 0) call_ = call;
    if (call != call_) {
      return FailLocked(absl::InternalError(
          absl::StrCat("ranks disagree: steps ", call.step, " and ", call_.step, ", calls of kinds ",
                       static_cast<int>(call.kind), " and ", static_cast<int>(call_.kind), ", sizes ",
                       call.size, " and ", call_.size)));
    }
    bring(arrived_ == 0);
    if (++arrived_ == static_cast<int32_t>(present_.size())) {
      arrived_ = 0;
      ++meetings_;
      take(true);
      changed_.SignalAll();
      return absl::OkStatus();
    }
    for (const int64_t meeting = meetings_; meetings_ == meeting;) {
      if (!failure_.ok()) return failure_;
      if (changed_.WaitWithDeadline(&mutex_, deadline) && meetings_ == meeting && failure_.ok()) {
        return FailLocked(absl::DeadlineExceededError(
            absl::StrCat(arrived_, " of ", present_.size(), " ranks reached step ", call.step)));
      }
    }
    take(false);
    return absl::OkStatus();
  }

  // Stores a rank's contribution; returns its index.
  size_t Bring(int32_t rank, absl::Span<const float> mine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t half = static_cast<size_t>(meetings_ % 2);
    brought_[half][rank].assign(mine.begin(), mine.end());
    return half;
  }

  absl::Status FailLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (failure_.ok()) failure_ = status;
    changed_.SignalAll();
    return failure_;
  }

  const int32_t world_size_;
  const uint64_t signature_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<bool> present_ ABSL_GUARDED_BY(mutex_);
  int32_t joined_ ABSL_GUARDED_BY(mutex_) = 0;
  // Whether the signatures of the ranks that have arrived are equal.
  bool alike_ ABSL_GUARDED_BY(mutex_) = true;
  // The current meeting.
  Call call_ ABSL_GUARDED_BY(mutex_);
  int32_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  GroupView folded_ ABSL_GUARDED_BY(mutex_);
  // Number of completed meetings.
  int64_t meetings_ ABSL_GUARDED_BY(mutex_) = 0;
  GroupView result_ ABSL_GUARDED_BY(mutex_);
  // By meeting modulo 2, then by rank.
  std::vector<std::vector<float>> brought_[2] ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

namespace {

class LocalBarrier final : public Barrier {
 public:
  LocalBarrier(std::shared_ptr<LocalGroup> group, int32_t rank) : group_(std::move(group)), rank_(rank) {}
  ~LocalBarrier() override { group_->Fail(Left("left")); }

  absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine,
                                      absl::Duration timeout) override {
    auto view = group_->AllReduce(step, mine, MonotonicNow() + timeout);
    if (!view.ok()) return Mine(view.status());
    return view;
  }

  absl::Status AllGather(int64_t step, absl::Span<const float> mine, absl::Span<float> all,
                         absl::Duration timeout) override {
    absl::Status status = CheckGatherSizes(group_->world_size(), mine, all);
    if (!status.ok()) group_->Fail(status);
    if (status.ok()) status = group_->AllGather(step, rank_, mine, all, MonotonicNow() + timeout);
    return Mine(status);
  }

  absl::Status ReduceScatter(int64_t step, absl::Span<const float> mine, absl::Span<float> sum,
                             absl::Duration timeout) override {
    absl::Status status = CheckScatterSizes(rank_, group_->world_size(), mine, sum);
    if (!status.ok()) group_->Fail(status);
    if (status.ok()) status = group_->ReduceScatter(step, rank_, mine, sum, MonotonicNow() + timeout);
    return Mine(status);
  }

  void Abort() override {
    aborted_.store(true);
    group_->Fail(Left("left the barrier"));
  }

 private:
  // Adds this rank to the status of an abort, which the group stores without it.
  absl::Status Mine(const absl::Status& status) const {
    return !status.ok() && aborted_.load() ? absl::CancelledError("barrier aborted") : status;
  }

  absl::Status Left(absl::string_view how) const {
    return absl::UnavailableError(absl::StrCat("rank ", rank_, " ", how));
  }

  const std::shared_ptr<LocalGroup> group_;
  const int32_t rank_;
  std::atomic<bool> aborted_ = false;
};

}  // namespace

std::string LocalHub::NewOffer() {
  MutexLock lock(&mutex_);
  return absl::StrCat("local:", ++offers_);
}

std::shared_ptr<LocalGroup> LocalHub::Find(const GroupSpec& spec) {
  MutexLock lock(&mutex_);
  absl::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
  auto& slot = groups_[{spec.communicator_id, spec.epoch}];
  std::shared_ptr<LocalGroup> group = slot.lock();
  if (group == nullptr) {
    group = std::make_shared<LocalGroup>(spec);
    slot = group;
  }
  return group;
}

absl::StatusOr<std::unique_ptr<Barrier>> LocalBarrierEndpoint::Form(const GroupSpec& spec,
                                                                    absl::Duration timeout,
                                                                    std::stop_token stop) {
  BFIO_RETURN_IF_ERROR(CheckGroup(spec));
  std::shared_ptr<LocalGroup> group = hub_->Find(spec);
  auto barrier = std::make_unique<LocalBarrier>(group, spec.rank);
  // Refers to the object, not to `barrier`, which is moved into the result before the callback is destroyed.
  const std::stop_callback on_stop(stop, [running = barrier.get()] { running->Abort(); });
  absl::Status joined = group->Join(spec, MonotonicNow() + timeout);
  if (stop.stop_requested()) return absl::CancelledError("stopped while the group formed");
  if (!joined.ok()) return joined;
  return barrier;
}

}  // namespace bfio::worker
