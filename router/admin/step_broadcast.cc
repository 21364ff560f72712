#include "router/admin/step_broadcast.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "common/base/clock.h"
#include "common/net/server_call.h"
#include "router/admin/router_state.h"

namespace bfio::router {

class StepBroadcast::Watcher final
    : public ServerCall<StepBroadcast::Watcher, v1::WatchStepsRequest, v1::StepSummary> {
 public:
  static std::shared_ptr<Watcher> Create(StepBroadcast* steps, std::function<bool()> still_allowed) {
    std::shared_ptr<Watcher> watcher(new Watcher(steps, std::move(still_allowed)));
    watcher->Open(watcher);
    return watcher;
  }

  // REQUIRES: called before the first Push.
  void SetEvery(uint32_t every) {
    MutexLock lock(&mutex_);
    every_ = every;
  }

  // False when the stream has ended.
  bool Push(const std::shared_ptr<const StepSummary>& summary) {
    MutexLock lock(&mutex_);
    if (ended()) return false;
    if (const absl::Time now = MonotonicNow(); now >= check_at_) {
      check_at_ = now + kCheckEvery;
      if (!still_allowed_()) {
        queue_.clear();
        if (SetEnd({grpc::StatusCode::UNAUTHENTICATED, "the caller's token is no longer valid"})) Advance();
        return false;
      }
    }
    if (counts_[summary->group]++ % every_ != 0) return true;
    if (queue_.size() >= kMaxQueued) {
      queue_.pop_front();
      ++dropped_;
    }
    queue_.push_back(summary);
    Advance();
    return true;
  }

  // Ends the stream; queued summaries are dropped.
  void End(grpc::Status status) {
    MutexLock lock(&mutex_);
    queue_.clear();
    if (SetEnd(std::move(status))) Advance();
  }

 private:
  static constexpr size_t kMaxQueued = 256;

  Watcher(StepBroadcast* steps, std::function<bool()> still_allowed)
      : ServerCall(/*context=*/nullptr), steps_(steps), still_allowed_(std::move(still_allowed)) {}

  void OnMessage(v1::WatchStepsRequest request) override {
    steps_->Add(shared_from_this(), request.has_every() ? request.every() : 1);
  }
  bool Next(v1::StepSummary& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (queue_.empty()) return false;
    message = ToProto(*queue_.front());
    message.set_dropped(std::exchange(dropped_, 0));
    queue_.pop_front();
    return true;
  }

  StepBroadcast* const steps_;
  // Reads the call's context, which is valid until the call has ended.
  const std::function<bool()> still_allowed_;
  absl::Time check_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  uint32_t every_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<std::shared_ptr<const StepSummary>> queue_ ABSL_GUARDED_BY(mutex_);
  // By group: number of summaries pushed.
  std::map<core::GroupIndex, uint64_t> counts_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

StepBroadcast::Stream* StepBroadcast::Subscribe(const absl::StatusOr<Peer>& allowed, FirstMessages* messages,
                                                std::function<bool()> still_allowed) {
  const std::shared_ptr<Watcher> watcher = Watcher::Create(this, std::move(still_allowed));
  watcher->Begin(allowed, messages);
  return watcher.get();
}

void StepBroadcast::Add(const std::shared_ptr<Watcher>& watcher, uint32_t every) {
  watcher->SetEvery(std::max<uint32_t>(1, every));
  MutexLock lock(&mutex_);
  // Publish removes watchers that have left, but a parked group publishes nothing.
  watchers_.erase(
      std::remove_if(watchers_.begin(), watchers_.end(), [](const auto& w) { return w->HasEnded(); }),
      watchers_.end());
  if (every < 1) {
    watcher->End(
        grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "every is 0; must be at least 1, or unset"));
  } else if (closed_) {
    watcher->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router is shutting down"));
  } else if (!MayJoin(watchers_, watcher, kMaxWatchers)) {
    watcher->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many WatchSteps streams are open"));
  } else {
    watchers_.push_back(watcher);
  }
}

size_t StepBroadcast::watchers() {
  MutexLock lock(&mutex_);
  return watchers_.size();
}

void StepBroadcast::Publish(const std::shared_ptr<const StepSummary>& summary) {
  MutexLock lock(&mutex_);
  const auto gone = [&](const std::shared_ptr<Watcher>& watcher) { return !watcher->Push(summary); };
  watchers_.erase(std::remove_if(watchers_.begin(), watchers_.end(), gone), watchers_.end());
}

void StepBroadcast::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  for (const auto& watcher : watchers_) {
    watcher->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router is shutting down"));
  }
  watchers_.clear();
}

}  // namespace bfio::router
