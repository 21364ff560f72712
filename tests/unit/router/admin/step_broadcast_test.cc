#include "router/admin/step_broadcast.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "bfio/v1/admin.grpc.pb.h"
#include "common/net/call_service.h"
#include "gtest/gtest.h"
#include "tests/testing/loopback_server.h"

namespace bfio::router {
namespace {

class WatchService final : public CallService {
 public:
  WatchService() {
    Add<v1::WatchStepsRequest, v1::StepSummary>(
        "/bfio.v1.Admin/WatchSteps", [this](grpc::CallbackServerContext*) {
          return steps_.Subscribe(absl::OkStatus(), &messages_, [this] { return allowed_.load(); });
        });
  }
  void AwaitWatcher() {
    while (steps_.watchers() == 0) std::this_thread::yield();
  }
  // Publishes a summary; a larger `ranks` makes the message larger.
  void Publish(int64_t step, int ranks = 0, core::GroupIndex group = 0) {
    const auto summary = std::make_shared<StepSummary>();
    summary->group = group;
    summary->step = step;
    summary->load_tokens.assign(static_cast<size_t>(ranks), int64_t{1} << 60);
    steps_.Publish(summary);
  }
  void Close() { steps_.Close(); }
  // The watchers' token is removed.
  void Revoke() { allowed_ = false; }

 private:
  std::atomic<bool> allowed_ = true;
  FirstMessages messages_;
  StepBroadcast steps_;
};

class StepBroadcastTest : public ::testing::Test {
 protected:
  void Watch(uint32_t every) {
    v1::WatchStepsRequest request;
    request.set_every(every);
    reader_ = v1::Admin::NewStub(server_.channel())->WatchSteps(&context_, request);
    if (every > 0) service_.AwaitWatcher();
  }
  // The next summary; absent when the stream has ended.
  std::optional<v1::StepSummary> Read() {
    v1::StepSummary summary;
    if (!reader_->Read(&summary)) return std::nullopt;
    return summary;
  }

  // A summary takes 9 bytes per rank.
  static constexpr int kRanksOfABigOne = testing::LoopbackServer::kBig / 9 + 1;

  WatchService service_;
  testing::LoopbackServer server_{&service_};
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::StepSummary>> reader_;
};

TEST_F(StepBroadcastTest, AWatcherGetsEveryNthStep) {
  Watch(/*every=*/3);
  for (int64_t step = 0; step < 7; ++step) service_.Publish(step);
  for (const uint64_t step : {0, 3, 6}) EXPECT_EQ(Read()->step(), step);
}

TEST_F(StepBroadcastTest, EachGroupsStepsAreCountedSeparately) {
  Watch(/*every=*/2);
  for (int64_t step = 0; step < 4; ++step) {
    for (const core::GroupIndex group : {0, 1}) service_.Publish(step, 0, group);
  }
  for (const uint64_t step : {0, 2}) {
    for (const uint32_t group : {0, 1}) {
      const auto summary = Read();
      ASSERT_TRUE(summary.has_value());
      EXPECT_EQ(summary->step(), step);
      EXPECT_EQ(summary->group(), group);
    }
  }
}

TEST_F(StepBroadcastTest, ASlowWatcherLosesTheOldestStepsAndGetsTheirNumber) {
  Watch(1);
  service_.Publish(0, kRanksOfABigOne);  // its write ends only when the watcher reads
  for (int64_t step = 1; step <= 300; ++step) service_.Publish(step);
  const auto first = Read();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->step(), 0u);
  EXPECT_EQ(first->dropped(), 0u);
  constexpr uint64_t kKept = 256, kLost = 300 - kKept;
  for (uint64_t step = kLost + 1; step <= 300; ++step) {
    const auto summary = Read();
    ASSERT_TRUE(summary.has_value());
    EXPECT_EQ(summary->step(), step);
    EXPECT_EQ(summary->dropped(), step == kLost + 1 ? kLost : 0);
  }
}

TEST_F(StepBroadcastTest, CloseEndsAStreamAndDiscardsItsQueue) {
  Watch(1);
  service_.Publish(0, kRanksOfABigOne);
  service_.Publish(1);
  service_.Close();
  EXPECT_EQ(Read()->step(), 0u);
  EXPECT_FALSE(Read().has_value());
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(StepBroadcastTest, AStreamEndsSoonAfterItsTokenIsRemoved) {
  Watch(1);
  service_.Publish(0);
  EXPECT_EQ(Read()->step(), 0u);
  service_.Revoke();
  // A parked group publishes nothing; this one goes on.
  std::atomic<bool> ended = false;
  std::thread steps([&] {
    for (int64_t step = 1; !ended; ++step) {
      service_.Publish(step);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  while (Read().has_value()) {
  }
  ended = true;
  steps.join();
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(StepBroadcastTest, EveryOfZeroIsRefused) {
  Watch(0);
  EXPECT_FALSE(Read().has_value());
  EXPECT_EQ(reader_->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace bfio::router
