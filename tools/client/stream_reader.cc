#include "tools/client/stream_reader.h"

#include <utility>

namespace bfio::client {

std::variant<std::monostate, v1::GenerateResponse, grpc::Status> StreamReader::Take(absl::Duration patience) {
  v1::GenerateResponse message;
  bool read;
  {
    MutexLock lock(&mutex_);
    const auto ready = [](StreamReader* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->Ready(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(+ready, this), patience)) return std::monostate();
    if (waiting_.empty()) return *status_;
    message = std::move(waiting_.front());
    waiting_.pop_front();
    read = paused_ && waiting_.size() <= kReadAhead / 2;
    if (read) paused_ = false;
  }
  if (read) ReadNext();  // without the lock: ReadNext may run reactions
  return message;
}

void StreamReader::Abandon() {
  Cancel();
  {
    MutexLock lock(&mutex_);
    abandoned_ = true;
    waiting_.clear();
    if (!paused_) return;
    paused_ = false;
  }
  ReadNext();
}

StreamCall::Then StreamReader::OnMessage(v1::GenerateResponse& message, absl::Time) {
  MutexLock lock(&mutex_);
  if (abandoned_) return Then::kRead;
  waiting_.emplace_back().Swap(&message);
  paused_ = waiting_.size() == kReadAhead;
  return paused_ ? Then::kPause : Then::kRead;
}

void StreamReader::OnEnd(const grpc::Status& status, absl::Time) {
  MutexLock lock(&mutex_);
  status_ = status;
}

}  // namespace bfio::client
