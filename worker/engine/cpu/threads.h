// A team of threads that does one thing after the other together.
//
// Purpose: the CPU engine's parallel loops. A step has some sixty of them, microseconds apart: the team waits
// awake for so long, as being woken takes longer, and sleeps then (ranks of a group may share cores, and the
// slowest one sets the pace of all). A team that is larger than the machine sleeps at once. Threads: Run and
// For from one thread at a time.
#ifndef BFIO_WORKER_ENGINE_CPU_THREADS_H_
#define BFIO_WORKER_ENGINE_CPU_THREADS_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace bfio::worker::cpu {

class Threads {
 public:
  // The caller of Run is one of the `count`. REQUIRES: count >= 1.
  explicit Threads(int32_t count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int32_t count() const { return count_; }
  // Calls task(0) .. task(count - 1), each on a thread of its own; returns when all have.
  void Run(absl::FunctionRef<void(int32_t)> task);
  // Calls task(begin, end) for parts of 0 .. n - 1, each `size` elements of work: the caller alone where that
  // is less than calling the others.
  void For(int64_t n, int64_t size, absl::FunctionRef<void(int64_t, int64_t)> task);

 private:
  void Serve(int32_t thread);
  // Until `atomic` is not `value`.
  template <typename T>
  void Await(const std::atomic<T>& atomic, T value) const;

  const int32_t count_;
  const bool awake_;
  // Of the present Run. Written before `round_` is, read after.
  const absl::FunctionRef<void(int32_t)>* task_ = nullptr;
  // Grows by one with each Run; the team waits for that.
  std::atomic<uint32_t> round_ = 0;
  // Helpers that are still at it.
  std::atomic<int32_t> busy_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> helpers_;
};

// The part of 0 .. n - 1 that thread `thread` of `count` takes: contiguous, nearly equal.
inline std::pair<int64_t, int64_t> Share(int64_t n, int32_t thread, int32_t count) {
  return {n * thread / count, n * (thread + 1) / count};
}

}  // namespace bfio::worker::cpu

#endif  // BFIO_WORKER_ENGINE_CPU_THREADS_H_
