// A thread team for parallel loops. The CPU engine's parallel loops. A step has about sixty of them,
// microseconds apart. Waking a thread takes longer than that, so the team spins for a while after each loop
// and only then sleeps (ranks of a group may share cores, and the slowest rank sets the pace). A team with
// more threads than the machine has cores sleeps at once. Threads: Run and For from one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace bfio::worker::cpu {

class Threads {
 public:
  // The thread that calls Run is one of the `count`. REQUIRES: count >= 1.
  explicit Threads(int32_t count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int32_t count() const { return count_; }
  // Calls task(0) .. task(count - 1), each on its own thread; returns when all have returned.
  void Run(absl::FunctionRef<void(int32_t)> task);
  // Divides 0 .. n - 1 into ranges and calls task(begin, end) for each, in parallel. `size`: work per index,
  // in elements. If the total is less than the cost of starting the other threads, the calling thread does
  // all of it.
  void For(int64_t n, int64_t size, absl::FunctionRef<void(int64_t, int64_t)> task);

 private:
  void Serve(int32_t thread);
  // Returns when `atomic` is not `value`.
  template <typename T>
  void Await(const std::atomic<T>& atomic, T value) const;

  const int32_t count_;
  const bool awake_;
  // The task of the current Run. Written before `round_` changes, read after.
  const absl::FunctionRef<void(int32_t)>* task_ = nullptr;
  // Increases by one with each Run; the team waits for that.
  std::atomic<uint32_t> round_ = 0;
  // Helper threads that have not finished the current task.
  std::atomic<int32_t> busy_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> helpers_;
};

// The contiguous, nearly equal part of 0 .. n - 1 for thread `thread` of `count`.
inline std::pair<int64_t, int64_t> Share(int64_t n, int32_t thread, int32_t count) {
  return {n * thread / count, n * (thread + 1) / count};
}

}  // namespace bfio::worker::cpu
