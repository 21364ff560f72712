// The threads of an HTTP server: a bounded number of them, and of connections that wait for one. Httplib's
// own pool is unbounded. Beyond both bounds the kernel's queue fills and callers wait to be connected.
// Threads: any.
#ifndef BFIO_COMMON_HTTP_BOUNDED_POOL_H_
#define BFIO_COMMON_HTTP_BOUNDED_POOL_H_

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

// Numbers of connections. A separate object, because httplib decides when the pool is destroyed.
struct PoolLoad {
  // Connections waiting for a thread, and those with a thread.
  std::atomic<int64_t> waiting = 0, running = 0;
};

class BoundedPool final : public httplib::TaskQueue {
 public:
  // `on_shutdown` is called before the pool waits for its threads.
  BoundedPool(int threads, size_t max_waiting, std::shared_ptr<PoolLoad> load = std::make_shared<PoolLoad>(),
              std::function<void()> on_shutdown = nullptr)
      : max_waiting_(max_waiting), load_(std::move(load)), on_shutdown_(std::move(on_shutdown)) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }

  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < max_waiting_ || stopping_; });
    tasks_.push_back(std::move(task));
    ++load_->waiting;
    changed_.notify_all();
  }

  void shutdown() override {
    if (on_shutdown_) on_shutdown_();
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
        --load_->waiting;
        ++load_->running;
        changed_.notify_all();
      }
      task();
      --load_->running;
    }
  }

  const size_t max_waiting_;
  const std::shared_ptr<PoolLoad> load_;
  const std::function<void()> on_shutdown_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace bfio

#endif  // BFIO_COMMON_HTTP_BOUNDED_POOL_H_
