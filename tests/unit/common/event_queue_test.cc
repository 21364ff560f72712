// The decision thread's mailbox.
#include "common/base/event_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/testing/wall_clock/wall_clock.h"

namespace bfio {
namespace {

TEST(EventQueue, TakesAllThatWaitsInOrder) {
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

TEST(EventQueue, IsWokenByAPostAndByClose) {
  EventQueue queue;
  std::vector<EventQueue::Event> batch;
  std::thread sender([&] {
    absl::SleepFor(absl::Milliseconds(20));
    queue.Post([] {});
  });
  queue.WaitAndTake(absl::InfiniteDuration(), batch);
  EXPECT_EQ(batch.size(), 1u);
  sender.join();
  std::thread closer([&] { queue.Close(); });
  queue.WaitAndTake(absl::InfiniteDuration(), batch);
  EXPECT_TRUE(batch.empty());
  closer.join();
  EXPECT_FALSE(queue.Post([] {}));
}

TEST(EventQueue, AWaitEndsThoughTheWallClockIsSetBack) {
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
