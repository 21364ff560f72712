// A queue of lines to a file descriptor that may block: standard error whose reader has stopped. Logging
// never blocks the logging thread. A line goes into a queue that is bounded in bytes, and a thread of the
// queue writes it. A line that does not fit is dropped and counted. Once half of the queue is free again, a
// line that reports the number of dropped lines is added. Threads: any; the writing thread receives no
// signals.
#pragma once

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
  // Returns the line, with its line break, that reports `lines` dropped ones. Called under the queue's lock.
  using DropNote = std::function<std::string(uint64_t lines)>;

  // Writes to `fd`, which it does not own. `capacity` in bytes, at least 1.
  LogQueue(int fd, size_t capacity, DropNote note);
  // Lines that are not written yet are lost: call Flush first.
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // Adds a line, with its line break. `must_keep`: adds it even beyond the bound; for the few lines that
  // report why a program ends.
  void Add(std::string line, bool must_keep = false);
  // Waits for at most `timeout` until everything added before is written; returns whether it is.
  bool Flush(absl::Duration timeout);

  // Lines dropped since the start, because the queue was full or the descriptor failed.
  uint64_t dropped() const;

 private:
  void Run();
  // Takes lines for one write; false: the queue ends.
  bool Take(std::string& chunk);
  // Waits until the descriptor is writable; false: the queue ends.
  bool AwaitWritable();
  // False: the queue ends, or the descriptor fails.
  bool Write(const std::string& chunk);
  void PushNote() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Push(std::string line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int fd_;
  const size_t capacity_;
  const DropNote note_;

  mutable Mutex mutex_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  // Total size of `lines_`.
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // True from when the queue is full until half of it is free.
  bool dropping_ ABSL_GUARDED_BY(mutex_) = false;
  // Dropped lines that no line has reported yet.
  uint64_t untold_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  // Numbers of lines added, and of lines that have left the queue: written or failed.
  uint64_t added_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Number of lines in the chunk being written; used only by the writing thread.
  uint64_t chunk_lines_ = 0;
  std::thread thread_;
};

}  // namespace bfio
