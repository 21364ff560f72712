// Lines on their way to a file descriptor that may take none: standard error whose reader has stopped.
//
// Purpose: logging never blocks the thread that logs. A line goes into a queue with a bound in bytes; a
// thread of the queue's own writes it. A line that does not fit is dropped and counted. Once half of the
// queue is free again, a line that says how many were dropped takes their place.
// Threads: any; the writing thread takes no signals.
#ifndef BFIO_COMMON_TELEMETRY_LOG_QUEUE_H_
#define BFIO_COMMON_TELEMETRY_LOG_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bfio {

class LogQueue {
 public:
  // The line, with its line break, that reports `lines` dropped ones. Called under the queue's lock.
  using DropNote = std::function<std::string(uint64_t lines)>;

  // Writes to `fd`, which it does not close. `capacity` in bytes, at least 1.
  LogQueue(int fd, size_t capacity, DropNote note);
  // What is not written yet is lost: Flush first.
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // Takes a line with its line break. `must_keep`: it is queued beyond the bound, for the few lines that
  // report why a program ends.
  void Add(std::string line, bool must_keep = false);
  // Waits for everything that was added before, at most for `timeout`; whether it is written.
  bool Flush(absl::Duration timeout);

  // Lines that were dropped since the start, because the queue was full or the descriptor refused them.
  uint64_t dropped() const;

 private:
  void Run();
  // Takes lines for one write; false: the queue ends.
  bool Take(std::string& chunk);
  // Waits until the descriptor takes bytes; false: the queue ends.
  bool AwaitWritable();
  // False: the queue ends, or the descriptor takes no bytes any more.
  bool Write(const std::string& chunk);
  void PushNote() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Push(std::string line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int fd_;
  const size_t capacity_;
  const DropNote note_;

  mutable Mutex mutex_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  // Of `lines_`.
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Since the queue was full, until half of it is free.
  bool dropping_ ABSL_GUARDED_BY(mutex_) = false;
  // Dropped, and no line has said so yet.
  uint64_t untold_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  // Lines that were added, and those that have left the queue: written or refused.
  uint64_t added_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the chunk being written; the thread's own.
  uint64_t chunk_lines_ = 0;
  std::thread thread_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_LOG_QUEUE_H_
