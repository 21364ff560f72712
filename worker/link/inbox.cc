#include "worker/link/inbox.h"

#include <utility>

namespace bfio::worker {

void Inbox::OnStreamUp(uint64_t stream) {
  MutexLock lock(&mutex_);
  DetachLocked();
  stream_ = stream;
  greeted_ = false;
}

void Inbox::OnStreamDown(uint64_t stream) {
  MutexLock lock(&mutex_);
  if (stream_ != stream) return;
  DetachLocked();
  stream_ = 0;
}

// The router is gone. An epoch that has had its first plan goes on without it; any other epoch ends.
void Inbox::DetachLocked() {
  if (!serving_ || entering_.has_value()) return EndEpochLocked();
  newest_epoch_ = 0;
}

void Inbox::OnEpoch(Epoch epoch) {
  MutexLock lock(&mutex_);
  if (stream_ == 0 || epoch.group.epoch <= newest_epoch_) {
    ++dropped_;
    return;
  }
  EndEpochLocked();
  newest_epoch_ = epoch.group.epoch;
  entering_ = std::move(epoch);
}

void Inbox::OnPlan(Plan plan) {
  MutexLock lock(&mutex_);
  if (stream_ == 0 || newest_epoch_ == 0 || plan.epoch != newest_epoch_ ||
      plan.apply_step <= last_apply_step_) {
    ++dropped_;
    return;
  }
  last_apply_step_ = plan.apply_step;
  pending_assignments_ += static_cast<int64_t>(plan.assignments.size());
  plans_.push_back(std::move(plan));
}

void Inbox::OnShutdown(std::string reason) {
  MutexLock lock(&mutex_);
  if (shutdown_.has_value()) return;
  EndEpochLocked();
  shutdown_ = std::move(reason);
}

// Clears the present epoch's state, and wakes the step loop.
void Inbox::EndEpochLocked() {
  newest_epoch_ = 0;
  serving_ = false;
  entering_.reset();
  plans_.clear();
  last_apply_step_ = 0;
  pending_assignments_ = 0;
  // Runs the step loop's stop callback (Barrier::Abort) here; it does not block and does not call back.
  over_.request_stop();
}

Inbox::Task Inbox::WaitForTask() {
  MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Inbox::HasTask));
  if (shutdown_.has_value()) return Finish{*shutdown_};
  if (!greeted_) {
    greeted_ = true;
    return Greet{stream_};
  }
  over_ = std::stop_source();
  epoch_stream_ = stream_;
  Enter enter{*std::move(entering_), stream_, over_.get_token()};
  entering_.reset();
  return enter;
}

std::optional<uint64_t> Inbox::TakeGreeting() {
  MutexLock lock(&mutex_);
  if (!MustGreet()) return std::nullopt;
  greeted_ = true;
  return stream_;
}

Inbox::PlanWait Inbox::WaitForPlan(int64_t step, bool parked, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const auto detached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !parked && stream_ != epoch_stream_;
  };
  const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return over_.stop_requested() || HasPlan(step) || MustGreet() || detached();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&ready), timeout);
  if (over_.stop_requested()) return PlanWait::kOver;
  if (HasPlan(step)) {
    serving_ = true;
    return PlanWait::kReady;
  }
  if (MustGreet()) return PlanWait::kGreet;
  return detached() ? PlanWait::kDetached : PlanWait::kTimeout;
}

void Inbox::TakeDue(int64_t step, std::vector<Plan>& due) {
  MutexLock lock(&mutex_);
  // After the epoch's end the queue may hold the next one's plans.
  if (over_.stop_requested()) return;
  while (!plans_.empty() && plans_.front().apply_step <= step) {
    pending_assignments_ -= static_cast<int64_t>(plans_.front().assignments.size());
    due.push_back(std::move(plans_.front()));
    plans_.pop_front();
  }
}

int64_t Inbox::pending_assignments() const {
  MutexLock lock(&mutex_);
  return over_.stop_requested() ? 0 : pending_assignments_;
}

int64_t Inbox::dropped() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

}  // namespace bfio::worker
