#include "common/telemetry/log_queue.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace bfio {
namespace {

// A pipe that poll reports as writable takes this many bytes without blocking, and does not mix them with
// other programs' writes.
constexpr size_t kChunkBytes = PIPE_BUF;
// Upper bound of the time after which a thread that waits for the descriptor detects the end of the queue, in
// milliseconds.
constexpr int kPollMs = 50;

}  // namespace

LogQueue::LogQueue(int fd, size_t capacity, DropNote note)
    : fd_(fd), capacity_(capacity), note_(std::move(note)) {
  // SIGTERM is for the thread that waits for it (common/base/shutdown.h), which may not exist yet. SIGPIPE is
  // ignored, because EPIPE reports the same.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LogQueue::~LogQueue() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void LogQueue::Add(std::string line, bool must_keep) {
  MutexLock lock(&mutex_);
  if (dropping_ && bytes_ <= capacity_ / 2) dropping_ = false;
  if (!must_keep && (dropping_ || bytes_ + line.size() > capacity_)) {
    dropping_ = true;
    ++dropped_;
    ++untold_;
    return;
  }
  if (!dropping_ && untold_ > 0) PushNote();
  Push(std::move(line));
}

void LogQueue::PushNote() {
  Push(note_(std::exchange(untold_, 0)));
}

void LogQueue::Push(std::string line) {
  bytes_ += line.size();
  ++added_;
  lines_.push_back(std::move(line));
}

bool LogQueue::Flush(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const uint64_t last = added_;
  const auto written = [this, last]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ >= last; };
  return mutex_.AwaitWithTimeout(absl::Condition(&written), timeout);
}

uint64_t LogQueue::dropped() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

bool LogQueue::Take(std::string& chunk) {
  chunk.clear();
  MutexLock lock(&mutex_);
  done_ += std::exchange(chunk_lines_, 0);
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !lines_.empty() || untold_ > 0;
  };
  mutex_.Await(absl::Condition(&ready));
  if (stopping_) return false;
  // The note about dropped lines does not wait for the next line, which may come much later.
  if (lines_.empty()) {
    dropping_ = false;
    PushNote();
  }
  while (!lines_.empty() && (chunk.empty() || chunk.size() + lines_.front().size() <= kChunkBytes)) {
    bytes_ -= lines_.front().size();
    chunk += lines_.front();
    lines_.pop_front();
    ++chunk_lines_;
  }
  return true;
}

bool LogQueue::AwaitWritable() {
  for (;;) {
    {
      MutexLock lock(&mutex_);
      if (stopping_) return false;
    }
    pollfd one = {fd_, POLLOUT, 0};
    if (poll(&one, 1, kPollMs) > 0) return true;
  }
}

bool LogQueue::Write(const std::string& chunk) {
  for (size_t at = 0; at < chunk.size();) {
    if (!AwaitWritable()) return false;
    const ssize_t written = write(fd_, chunk.data() + at, std::min(kChunkBytes, chunk.size() - at));
    if (written > 0) at += static_cast<size_t>(written);
    if (written < 0 && errno != EINTR && errno != EAGAIN) return false;
  }
  return true;
}

void LogQueue::Run() {
  std::string chunk;
  while (Take(chunk)) {
    if (Write(chunk)) continue;
    // Not reported in a line, because the descriptor has no reader any more.
    MutexLock lock(&mutex_);
    dropped_ += chunk_lines_;
  }
}

}  // namespace bfio
