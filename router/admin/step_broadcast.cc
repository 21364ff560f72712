#include "router/admin/step_broadcast.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "common/net/tsan_edge.h"

namespace bfio::router {

class StepBroadcast::Watcher final : public grpc::ServerWriteReactor<v1::StepSummary> {
 public:
  explicit Watcher(uint32_t every) : every_(every) {}

  static std::shared_ptr<Watcher> Create(uint32_t every) {
    auto watcher = std::make_shared<Watcher>(every);
    watcher->self_ = watcher;
    GrpcHandOver(watcher.get());
    return watcher;
  }

  // False when the stream has ended.
  bool Push(const std::shared_ptr<const v1::StepSummary>& summary) {
    MutexLock lock(&mutex_);
    if (ended_) return false;
    if (count_++ % every_ != 0) return true;
    if (queue_.size() >= kMaxQueued) {
      queue_.pop_front();
      ++dropped_;
    }
    queue_.push_back(summary);
    WriteNext();
    return true;
  }

  bool ended() {
    MutexLock lock(&mutex_);
    return ended_;
  }

  void End(grpc::Status status) {
    MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    status_ = std::move(status);
    MaybeFinish();
  }

  void OnWriteDone(bool ok) override {
    const GrpcReaction reaction(this);
    MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) ended_ = true;
    if (!ended_) WriteNext();
    MaybeFinish();
  }

  void OnCancel() override {
    const GrpcReaction reaction(this);
    End(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    GrpcTakeOver(this);
    const std::shared_ptr<Watcher> self = std::move(self_);
  }

 private:
  static constexpr size_t kMaxQueued = 256;

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || queue_.empty()) return;
    message_ = *queue_.front();
    message_.set_dropped(std::exchange(dropped_, 0));
    queue_.pop_front();
    writing_ = true;
    GrpcHandOver(this);
    StartWrite(&message_);
  }

  void MaybeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!ended_ || writing_ || finished_) return;
    finished_ = true;
    GrpcHandOver(this);
    Finish(status_);
  }

  const uint32_t every_;
  std::shared_ptr<Watcher> self_;  // held until OnDone
  Mutex mutex_;
  std::deque<std::shared_ptr<const v1::StepSummary>> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  v1::StepSummary message_;  // belongs to gRPC while writing_
};

grpc::ServerWriteReactor<v1::StepSummary>* StepBroadcast::Subscribe(uint32_t every) {
  const std::shared_ptr<Watcher> watcher = Watcher::Create(std::max<uint32_t>(1, every));
  MutexLock lock(&mutex_);
  // Publish forgets who has left, but a parked group publishes nothing.
  watchers_.erase(
      std::remove_if(watchers_.begin(), watchers_.end(), [](const auto& w) { return w->ended(); }),
      watchers_.end());
  if (every < 1) {
    watcher->End(
        grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "every is 0; must be at least 1, or unset"));
  } else if (closed_) {
    watcher->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router is shutting down"));
  } else if (watchers_.size() >= kMaxWatchers) {
    watcher->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watchers"));
  } else {
    watchers_.push_back(watcher);
  }
  return watcher.get();
}

void StepBroadcast::Publish(const std::shared_ptr<const v1::StepSummary>& summary) {
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
