#include "worker/barrier/local/local_barrier.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "worker/barrier/barrier.h"

namespace bfio::worker {

// The shared state of one epoch. The first failure is final: every rank gets it from then on.
class LocalGroup {
 public:
  explicit LocalGroup(const GroupSpec& spec) : present_(spec.world_size, false) {}

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
    if (++joined_ == spec.world_size) changed_.SignalAll();
    while (joined_ < spec.world_size && failure_.ok()) {
      if (changed_.WaitWithDeadline(&mutex_, deadline) && joined_ < spec.world_size && failure_.ok()) {
        return FailLocked(absl::DeadlineExceededError(
            absl::StrCat(joined_, " of ", spec.world_size, " ranks joined epoch ", spec.epoch)));
      }
    }
    // A group that was complete has formed even if it has failed since; the next AllReduce reports the
    // failure.
    return joined_ == spec.world_size ? absl::OkStatus() : failure_;
  }

  absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine, absl::Time deadline) {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    if (arrived_ > 0 && step != step_) {
      return FailLocked(absl::InternalError(absl::StrCat("ranks disagree: steps ", step, " and ", step_)));
    }
    if (arrived_ == 0) {
      step_ = step;
      folded_ = ViewOf(mine);
    } else {
      Fold(ViewOf(mine), folded_);
    }
    if (++arrived_ == static_cast<int32_t>(present_.size())) {
      arrived_ = 0;
      ++completed_;
      result_ = folded_;
      changed_.SignalAll();
      return result_;
    }
    for (const int64_t completed = completed_; completed_ == completed;) {
      if (!failure_.ok()) return failure_;
      if (changed_.WaitWithDeadline(&mutex_, deadline) && completed_ == completed && failure_.ok()) {
        return FailLocked(absl::DeadlineExceededError(
            absl::StrCat(arrived_, " of ", present_.size(), " ranks reached step ", step)));
      }
    }
    return result_;
  }

  void Fail(const absl::Status& status) {
    MutexLock lock(&mutex_);
    FailLocked(status).IgnoreError();
  }

 private:
  absl::Status FailLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (failure_.ok()) failure_ = status;
    changed_.SignalAll();
    return failure_;
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<bool> present_ ABSL_GUARDED_BY(mutex_);
  int32_t joined_ ABSL_GUARDED_BY(mutex_) = 0;
  // The step that ranks are arriving at, and the number of completed steps.
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t completed_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  GroupView folded_ ABSL_GUARDED_BY(mutex_);
  // Of the last completed step. It stays until all ranks have arrived at the next one, so every rank reads
  // it.
  GroupView result_ ABSL_GUARDED_BY(mutex_);
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
    // The group stores an abort without naming this rank as the one that is aborted.
    if (!view.ok() && aborted_.load()) return absl::CancelledError("barrier aborted");
    return view;
  }

  void Abort() override {
    aborted_.store(true);
    group_->Fail(Left("left the barrier"));
  }

 private:
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
