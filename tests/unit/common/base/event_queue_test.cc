// The decision thread's mailbox: events are taken in order, and waits end when they must.
#include "common/base/event_queue.h"

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
#include "tests/testing/wall_clock/wall_clock.h"

namespace bfio {
namespace {

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
  const std::unique_ptr<testing::WallClock> clock = testing::WallClockOfTest();
  if (clock == nullptr) return;
  std::atomic<bool> waiting{true};
  std::thread jumping([&] {
    while (waiting) {
      clock->Jump(-absl::Hours(1));
      absl::SleepFor(absl::Milliseconds(5));
    }
  });
  EventQueue queue;
  std::vector<EventQueue::Event> batch;
  queue.WaitAndTake(absl::Milliseconds(100), batch);
  EXPECT_TRUE(batch.empty());
  waiting = false;
  jumping.join();
}

}  // namespace
}  // namespace bfio
