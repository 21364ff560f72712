// Waits on bfio's mutex and condition variable and for events, also while the wall clock is set.
#include "common/base/mutex.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/event_queue.h"
#include "tests/testing/wall_clock/wall_clock.h"

namespace bfio {
namespace {

using testing::WallClock;

constexpr absl::Duration kShort = absl::Milliseconds(100);

// Sets the wall clock forward or back by `by` on its own thread, so that it also jumps during waits.
class Jumping {
 public:
  Jumping(WallClock& clock, absl::Duration by)
      : thread_([this, &clock, by] {
          while (!stop_) {
            clock.Jump(by);
            absl::SleepFor(kShort / 20);
          }
        }) {}
  ~Jumping() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(Mutex, AwaitReturnsWhenAnotherThreadMakesTheConditionTrue) {
  Mutex mutex;
  int turn = 0;
  // Ten threads, each woken by the one before it.
  std::vector<std::thread> threads;
  for (int i = 9; i >= 0; --i) {
    threads.emplace_back([&, i] {
      const auto mine = [&] { return turn == i; };
      MutexLock lock(&mutex);
      mutex.Await(absl::Condition(&mine));
      ++turn;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turn, 10);
}

TEST(Mutex, AwaitWithTimeoutReturnsWhetherTheConditionHolds) {
  Mutex mutex;
  bool is = false;
  MutexLock lock(&mutex);
  EXPECT_FALSE(mutex.AwaitWithTimeout(absl::Condition(&is), absl::Milliseconds(5)));
  EXPECT_FALSE(mutex.AwaitWithTimeout(absl::Condition(&is), absl::ZeroDuration()));
  EXPECT_FALSE(mutex.AwaitWithTimeout(absl::Condition(&is), -absl::InfiniteDuration()));
  is = true;
  EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&is), absl::ZeroDuration()));
}

// Waiting for a signal releases the mutex: threads that await a condition see what the waiting thread changed
// before.
TEST(Mutex, WaitingForASignalWakesAwaitingThreads) {
  Mutex mutex;
  CondVar changed;
  bool waiting = false, first = false, second = false;
  std::thread awaiting([&] {
    MutexLock lock(&mutex);
    waiting = true;
    mutex.Await(absl::Condition(&first));
    second = true;
    changed.SignalAll();
  });
  {
    MutexLock lock(&mutex);
    mutex.Await(absl::Condition(&waiting));
    first = true;
    while (!second) changed.Wait(&mutex);
  }
  awaiting.join();
}

TEST(Mutex, TheLastUserMayDestroyIt) {
  for (int i = 0; i < 200; ++i) {
    struct Shared {
      Mutex mutex;
      bool done = false;
    };
    auto shared = std::make_unique<Shared>();
    std::thread other([raw = shared.get()] {
      MutexLock lock(&raw->mutex);
      raw->done = true;
    });
    {
      MutexLock lock(&shared->mutex);
      shared->mutex.Await(absl::Condition(&shared->done));
    }
    shared.reset();
    other.join();
  }
}

TEST(Mutex, TimedWaitsIgnoreJumpsOfTheWallClock) {
  const std::unique_ptr<WallClock> clock = testing::WallClockOfTest();
  if (clock == nullptr) return;
  {
    // Checks that jumps of this clock affect waits on the wall clock at all: a wait of hours ends at once.
    absl::Mutex mutex;
    absl::CondVar changed;
    const Jumping jumping(*clock, absl::Hours(2));
    absl::MutexLock lock(&mutex);
    while (!changed.WaitWithTimeout(&mutex, absl::Hours(1))) {
    }
  }
  Mutex mutex;
  CondVar changed;
  bool never = false;
  {
    // The clock is set back by an hour: short waits stay short.
    const Jumping jumping(*clock, -absl::Hours(1));
    MutexLock lock(&mutex);
    EXPECT_FALSE(mutex.AwaitWithTimeout(absl::Condition(&never), kShort));
    while (!changed.WaitWithTimeout(&mutex, kShort)) {
    }
    const absl::Time deadline = MonotonicNow() + kShort;
    while (!changed.WaitWithDeadline(&mutex, deadline)) {
    }
  }
  // The clock is set forward: a wait of an hour does not end early.
  bool go_on = false, held = false;
  std::atomic<bool> inside{false}, ended{false};
  const auto may_go_on = [&] {
    inside = true;
    return go_on;
  };
  std::thread waiter([&] {
    MutexLock lock(&mutex);
    held = mutex.AwaitWithTimeout(absl::Condition(&may_go_on), absl::Hours(1));
    ended = true;
  });
  {
    const Jumping jumping(*clock, absl::Hours(2));
    for (int i = 0; i < 20'000 && !inside; ++i) absl::SleepFor(kShort / 20);
    EXPECT_TRUE(inside);
    absl::SleepFor(3 * kShort);
    EXPECT_FALSE(ended);
  }
  {
    MutexLock lock(&mutex);
    go_on = true;
  }
  waiter.join();
  EXPECT_TRUE(held);
}

TEST(EventQueue, TakesAllQueuedEventsInOrder) {
  EventQueue queue;
  std::vector<EventQueue::Event> batch;
  std::string ran;
  EXPECT_TRUE(queue.Post([&] { ran += "a"; }));
  EXPECT_TRUE(queue.PostBounded([&] { ran += "b"; }, 2));
  EXPECT_FALSE(queue.PostBounded([&] { ran += "c"; }, 2));
  queue.WaitAndTake(absl::InfiniteDuration(), batch);
  for (EventQueue::Event& event : batch) std::move(event)();
  EXPECT_EQ(ran, "ab");
  queue.WaitAndTake(absl::ZeroDuration(), batch);
  EXPECT_TRUE(batch.empty());
}

// Waits until the kernel reports the thread as sleeping.
void AwaitAsleep(const std::atomic<pid_t>& thread) {
  for (std::string state; state != "S"; absl::SleepFor(absl::Milliseconds(1))) {
    std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string word;
    stat >> word >> word >> state;
  }
}

TEST(EventQueue, WaitEndsOnAPostAndOnClose) {
  for (const bool close : {false, true}) {
    EventQueue queue;
    std::atomic<pid_t> waiting = 0;
    std::promise<size_t> taken;
    std::thread receiver([&] {
      std::vector<EventQueue::Event> batch;
      waiting = static_cast<pid_t>(syscall(SYS_gettid));
      queue.WaitAndTake(absl::InfiniteDuration(), batch);
      taken.set_value(batch.size());
    });
    AwaitAsleep(waiting);
    if (close) {
      queue.Close();
    } else {
      queue.Post([] {});
    }
    std::future<size_t> count = taken.get_future();
    const bool woken = count.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    EXPECT_TRUE(woken);
    if (!woken) queue.Post([] {});
    EXPECT_EQ(count.get(), close ? 0u : 1u);
    receiver.join();
    EXPECT_EQ(queue.Post([] {}), !close);
  }
}

TEST(EventQueue, AWaitEndsEvenIfTheWallClockIsSetBack) {
  const std::unique_ptr<WallClock> clock = testing::WallClockOfTest();
  if (clock == nullptr) return;
  const Jumping jumping(*clock, -absl::Hours(1));
  EventQueue queue;
  std::vector<EventQueue::Event> batch;
  queue.WaitAndTake(kShort, batch);
  EXPECT_TRUE(batch.empty());
}

}  // namespace
}  // namespace bfio
