// The decision thread's mailbox.
#include "router/service/event_queue.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/time/clock.h"

namespace bfio::router {
namespace {

constexpr char kFakeTime[] = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

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

// To a wait that sleeps until a wall-clock time, a clock an hour ahead of the kernel's is what a clock is
// that was set back by an hour.
TEST(EventQueue, AWaitEndsThoughTheWallClockIsSetBack) {
  if (std::getenv("BFIO_EVENT_QUEUE_WAIT") != nullptr) {
    EventQueue queue;
    std::vector<EventQueue::Event> batch;
    queue.WaitAndTake(absl::Milliseconds(50), batch);
    _exit(0);
  }
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizers want to be loaded first";
#endif
  if (!std::filesystem::exists(kFakeTime)) GTEST_SKIP() << "libfaketime is not installed";
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const pid_t child = fork();
  if (child == 0) {
    setenv("LD_PRELOAD", kFakeTime, 1);
    setenv("FAKETIME", "+3600s", 1);
    setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1", 1);
    setenv("BFIO_EVENT_QUEUE_WAIT", "1", 1);
    unsetenv("GTEST_OUTPUT");
    alarm(60);
    execl(self.c_str(), self.c_str(), "--gtest_filter=EventQueue.AWaitEnds*", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status) << ": it did not wake up";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace bfio::router
