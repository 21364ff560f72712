// The threads of EngineLink.
#include "router/engine_link/engine_link.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace bfio::router {
namespace {

class NoHandler final : public WorkerHandler {
 public:
  void OnWorkerEvent(std::shared_ptr<WorkerChannel>, WorkerEvent) override {}
};

TEST(EngineLink, StopWaitsForNoLookup) {
  absl::Notification asked, answer;
  std::atomic<int> lookups = 0;
  std::atomic<bool> answered = false;
  NoHandler handler;
  {
    EngineLink::Options options;
    options.engines = *ReadEngineSource("vllm+dns://one:1,vllm+dns://two:1");
    options.resolve = [&](const std::string&) -> absl::StatusOr<std::vector<std::string>> {
      if (lookups++ == 0) asked.Notify();
      // The timeout makes the test fail instead of hang if a link waits for this answer.
      answer.WaitForNotificationWithTimeout(absl::Seconds(20));
      answered = true;
      return absl::UnavailableError("no answer");
    };
    EngineLink link(std::move(options), &handler);
    asked.WaitForNotification();
    link.Stop();
    EXPECT_FALSE(answered);
    answer.Notify();
  }
  EXPECT_EQ(lookups, 1) << "the other name is not looked up any more";
}

}  // namespace
}  // namespace bfio::router
