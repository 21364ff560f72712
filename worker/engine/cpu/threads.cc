#include "worker/engine/cpu/threads.h"

#include <chrono>

namespace bfio::worker::cpu {
namespace {

// About the time that it takes to put a thread to sleep and wake it.
constexpr std::chrono::microseconds kAwake(50);
// Elements that one thread computes in the time that it takes to start another.
constexpr int64_t kAlone = 1 << 15;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

Threads::Threads(int32_t count)
    : count_(count), awake_(count <= static_cast<int32_t>(std::thread::hardware_concurrency())) {
  for (int32_t i = 1; i < count; ++i) helpers_.emplace_back([this, i] { Serve(i); });
}

Threads::~Threads() {
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Threads::Run(absl::FunctionRef<void(int32_t)> task) {
  if (helpers_.empty()) return task(0);
  task_ = &task;
  busy_ = count_ - 1;
  ++round_;
  round_.notify_all();
  task(0);
  for (int32_t busy = busy_; busy != 0; busy = busy_) Await(busy_, busy);
}

void Threads::For(int64_t n, int64_t size, absl::FunctionRef<void(int64_t, int64_t)> task) {
  if (n < 2 || n * size <= kAlone) return task(0, n);
  Run([&](int32_t thread) {
    const auto [begin, end] = Share(n, thread, count_);
    task(begin, end);
  });
}

template <typename T>
void Threads::Await(const std::atomic<T>& atomic, T value) const {
  if (awake_) {
    const auto end = std::chrono::steady_clock::now() + kAwake;
    do {
      for (int i = 0; i < 32; ++i) {
        if (atomic != value) return;
        Pause();
      }
    } while (std::chrono::steady_clock::now() < end);
  }
  atomic.wait(value);
}

void Threads::Serve(int32_t thread) {
  for (uint32_t seen = 0;;) {
    Await(round_, seen);
    seen = round_;  // at most the current round: Run waits for this thread
    if (stop_) return;
    (*task_)(thread);
    if (--busy_ == 0) busy_.notify_one();
  }
}

}  // namespace bfio::worker::cpu
