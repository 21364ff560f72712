// Messages from the router that wait for the step loop. The one place where the threads of the stream and of
// the step loop meet. It drops outdated messages: epochs and steps of plans must increase, and plans must
// belong to the newest epoch. A message that ends the present epoch (a newer Epoch, Shutdown, Stop) also
// requests a stop on the epoch's token, which aborts the barrier. Threads: producers may be any threads and
// never block; the consumer is the step loop's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "worker/link/messages.h"

namespace bfio::worker {

class Inbox {
 public:
  // --- producers ---

  // A new stream to the router is open. Streams are numbered from 1 by the caller, each larger than the one
  // before.
  void OnStreamUp(uint64_t stream);
  // That stream is lost. An epoch that has had its first plan continues without the router (it is
  // *detached*), because its tokens are kept for the next router; any other epoch ends.
  void OnStreamDown(uint64_t stream);
  void OnEpoch(Epoch epoch);
  void OnPlan(Plan plan);
  // The router's Shutdown, or the program's own decision: the loop ends at the next step boundary.
  void OnShutdown(std::string reason);

  // --- the step loop ---

  // The next action outside an epoch.
  struct Greet {
    uint64_t stream;
  };
  struct Enter {
    Epoch epoch;
    uint64_t stream;
    // Stops when the epoch is over.
    std::stop_token over;
  };
  struct Finish {
    std::string reason;
  };
  using Task = std::variant<Greet, Enter, Finish>;
  // Waits for the next action.
  Task WaitForTask();

  // The new stream, if one is open and no hello was sent on it.
  std::optional<uint64_t> TakeGreeting();

  enum class PlanWait { kReady, kOver, kGreet, kDetached, kTimeout };
  // Waits until a plan with apply_step >= `step` is here (kReady), the epoch is over (kOver), a hello to a
  // new router is due (kGreet) or, unless the group is parked, no plan can come any more (kDetached).
  PlanWait WaitForPlan(int64_t step, bool parked, absl::Duration timeout);

  // Moves the plans with apply_step <= `step` to the end of `due`, in order. Never blocks.
  void TakeDue(int64_t step, std::vector<Plan>& due);

  // Assignments in plans not taken yet.
  int64_t pending_assignments() const;
  // Messages dropped as out of date.
  int64_t dropped() const;

 private:
  void EndEpochLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasTask() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return shutdown_.has_value() || (stream_ != 0 && (!greeted_ || entering_.has_value()));
  }
  bool HasPlan(int64_t step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !plans_.empty() && plans_.back().apply_step >= step;
  }
  bool MustGreet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_ != 0 && !greeted_; }
  void DetachLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  // 0: none.
  uint64_t stream_ ABSL_GUARDED_BY(mutex_) = 0;
  bool greeted_ ABSL_GUARDED_BY(mutex_) = false;
  // The newest epoch on this stream; 0: none yet.
  uint64_t newest_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  // The newest epoch, until the step loop takes it up.
  std::optional<Epoch> entering_ ABSL_GUARDED_BY(mutex_);
  // The stream of the epoch that the step loop is in, and whether that epoch has had its first plan.
  uint64_t epoch_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  std::stop_source over_ ABSL_GUARDED_BY(mutex_);
  std::deque<Plan> plans_ ABSL_GUARDED_BY(mutex_);
  int64_t last_apply_step_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t pending_assignments_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<std::string> shutdown_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::worker
