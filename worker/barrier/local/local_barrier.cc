#include "worker/barrier/local/local_barrier.h"

#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/barrier/view.h"

namespace bfio::worker {

// One epoch's meeting place. The first failure is final and is what every rank gets from then on.
class LocalGroup {
 public:
  explicit LocalGroup(int32_t world_size) : present_(world_size, false) {}

  // Waits until all ranks are here.
  absl::Status Join(const GroupSpec& spec, absl::Time deadline) {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    if (spec.world_size != static_cast<int32_t>(present_.size())) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", spec.rank, " believes in ", spec.world_size,
                                                     " ranks, the others in ", present_.size()));
    }
    if (present_[spec.rank])
      return absl::InvalidArgumentError(absl::StrCat("rank ", spec.rank, " came twice"));
    present_[spec.rank] = true;
    if (++joined_ == spec.world_size) changed_.SignalAll();
    while (joined_ < spec.world_size && failure_.ok()) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        return FailLocked(absl::DeadlineExceededError(
            absl::StrCat(joined_, " of ", spec.world_size, " ranks came to form epoch ", spec.epoch)));
      }
    }
    // A group that was complete has formed, even if it has failed since: the next AllReduce tells.
    return joined_ == spec.world_size ? absl::OkStatus() : failure_;
  }

  absl::StatusOr<GroupView> AllReduce(int64_t step, const Contribution& mine, absl::Time deadline) {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    if (arrived_ == 0) {
      step_ = step;
      folded_ = ViewOf(mine);
    } else if (step != step_) {
      return FailLocked(absl::InternalError(absl::StrCat("ranks disagree: steps ", step, " and ", step_)));
    } else {
      Fold(ViewOf(mine), folded_);
    }
    if (++arrived_ == static_cast<int32_t>(present_.size())) {
      arrived_ = 0;
      ++meetings_;
      result_ = folded_;
      changed_.SignalAll();
      return result_;
    }
    // `result_` cannot be overwritten before this rank has read it: the next meeting needs this rank.
    for (const int64_t meeting = meetings_; meetings_ == meeting;) {
      if (!failure_.ok()) return failure_;
      if (changed_.WaitWithDeadline(&mutex_, deadline) && meetings_ == meeting && failure_.ok()) {
        return FailLocked(absl::DeadlineExceededError(
            absl::StrCat(arrived_, " of ", present_.size(), " ranks came to step ", step)));
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
  // The meeting under way.
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t arrived_ ABSL_GUARDED_BY(mutex_) = 0;
  GroupView folded_ ABSL_GUARDED_BY(mutex_);
  // The last one.
  int64_t meetings_ ABSL_GUARDED_BY(mutex_) = 0;
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
    auto view = group_->AllReduce(step, mine, absl::Now() + timeout);
    // The group knows that somebody aborted; only here is it known that it was this rank.
    if (!view.ok() && aborted_.load()) return absl::CancelledError("barrier aborted");
    return view;
  }

  void Abort() override {
    aborted_.store(true);
    group_->Fail(Left("gave up"));
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
    group = std::make_shared<LocalGroup>(spec.world_size);
    slot = group;
  }
  return group;
}

absl::StatusOr<std::unique_ptr<Barrier>> LocalBarrierEndpoint::Form(const GroupSpec& spec,
                                                                    absl::Duration timeout,
                                                                    std::stop_token stop) {
  if (absl::Status status = CheckGroup(spec); !status.ok()) return status;
  std::shared_ptr<LocalGroup> group = hub_->Find(spec);
  auto barrier = std::make_unique<LocalBarrier>(group, spec.rank);
  std::stop_callback on_stop(stop, [&] { barrier->Abort(); });
  absl::Status joined = group->Join(spec, absl::Now() + timeout);
  if (stop.stop_requested()) return absl::CancelledError("stopped while the group formed");
  if (!joined.ok()) return joined;
  return barrier;
}

}  // namespace bfio::worker
