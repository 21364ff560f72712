// The threads of an HTTP server: a bounded number of them, and of connections that wait for one. Httplib's
// own pool is unbounded. Beyond both bounds the kernel's queue fills and callers wait to be connected.
// Threads: any.
#pragma once

// Debian's library is compiled with this, and the layout of its classes depends on it.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace bfio {

class BoundedPool final : public httplib::TaskQueue {
 public:
  // `waiting` counts what waits for a thread. `on_shutdown` is called before the pool waits for its threads.
  BoundedPool(int threads, size_t max_waiting, std::shared_ptr<std::atomic<int64_t>> waiting,
              std::function<void()> on_shutdown)
      : max_waiting_(max_waiting), waiting_(std::move(waiting)), on_shutdown_(std::move(on_shutdown)) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }

  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < max_waiting_ || stopping_; });
    tasks_.push_back(std::move(task));
    ++*waiting_;
    changed_.notify_all();
  }

  void shutdown() override {
    on_shutdown_();
    {
      std::unique_lock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void Work() {
    // Named for tests that measure CPU time per thread.
    pthread_setname_np(pthread_self(), "bfio-http");
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !tasks_.empty() || stopping_; });
        // Accepted connections are still served: a task owns its connection.
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        --*waiting_;
        changed_.notify_all();
      }
      task();
    }
  }

  const size_t max_waiting_;
  const std::shared_ptr<std::atomic<int64_t>> waiting_;
  const std::function<void()> on_shutdown_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace bfio
