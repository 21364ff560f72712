// A server of a list that changes: when its ranks attach and leave.
#include "router/engine_link/engine_server.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Described = absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&>;

// Answers to Describe wait in `asked`; nothing else is answered.
class SilentClient final : public EngineClient {
 public:
  explicit SilentClient(std::vector<Described>* asked) : asked_(asked) {}
  void Describe(absl::Duration, Described done) override { asked_->push_back(std::move(done)); }
  void CheckHealth(absl::Duration, absl::AnyInvocable<void(absl::Status) &&>) override {}
  void GetLoads(absl::Duration,
                absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineRankLoad>>) &&>) override {}
  std::shared_ptr<EngineStream> Generate(const EngineCall&, int32_t, const std::string&,
                                         StreamCallbacks) override {
    return nullptr;
  }

 private:
  std::vector<Described>* const asked_;
};

class EngineServerTest : public ::testing::Test, public WorkerHandler {
 protected:
  EngineServerTest() {
    options_.make_client = [this](const EngineAddress&) { return std::make_unique<SilentClient>(&asked_); };
    server_ = std::make_shared<EngineServer>(EngineAddress{.protocol = "vllm", .server = {"a", 1}}, &options_,
                                             this, events_, &next_member_, nullptr);
  }
  void OnWorkerEvent(std::shared_ptr<WorkerChannel> channel, WorkerEvent event) override {
    if (std::holds_alternative<WorkerHello>(event)) {
      seen_.emplace_back("joins");
      channel_ = std::move(channel);
    } else if (std::holds_alternative<Leave>(event)) {
      seen_.emplace_back("leaves");
    }
  }
  // The engine tells what it is.
  void Describe() {
    ASSERT_FALSE(asked_.empty());
    std::move(asked_.back())(EngineDescription{.slots = 4, .max_sequence_tokens = 64});
    asked_.pop_back();
    RunEvents();
  }
  void RunEvents() {
    std::vector<EventQueue::Event> events;
    events_->WaitAndTake(absl::ZeroDuration(), events);
    for (EventQueue::Event& event : events) std::move(event)();
  }
  // As if the longest wait before it attaches or asks again had passed.
  void Later() { server_->OnTimer(MonotonicNow() + EngineLink::kLongestRetry); }

  EngineLink::Options options_;
  std::vector<Described> asked_;
  const std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();
  MemberId next_member_ = 1;
  std::shared_ptr<EngineServer> server_;
  std::vector<std::string> seen_;
  std::shared_ptr<WorkerChannel> channel_;
};

TEST_F(EngineServerTest, WhatIsListedNoMoreAsItAnswersNeverAttaches) {
  Later();
  server_->Retire();
  Describe();
  EXPECT_THAT(seen_, IsEmpty());
  EXPECT_TRUE(server_->gone());
  server_->Keep();
  Later();
  Describe();
  EXPECT_THAT(seen_, ElementsAre("joins")) << "it was listed again before the link had forgotten it";
}

TEST_F(EngineServerTest, WhatIsListedAgainAsItLeavesComesBack) {
  Later();
  Describe();
  server_->Retire();
  channel_->SendShutdown("drained");
  RunEvents();
  server_->Keep();
  channel_->Close(absl::OkStatus());
  RunEvents();
  EXPECT_FALSE(server_->gone());
  Later();
  EXPECT_THAT(seen_, ElementsAre("joins", "leaves", "joins"));
}

TEST_F(EngineServerTest, WhatHasLeftIsGoneUntilItIsListedAgain) {
  Later();
  Describe();
  server_->Retire();
  EXPECT_FALSE(server_->gone());
  channel_->SendShutdown("drained");
  channel_->Close(absl::OkStatus());
  RunEvents();
  EXPECT_TRUE(server_->gone());
  Later();
  EXPECT_THAT(seen_, ElementsAre("joins", "leaves"));
  server_->Keep();
  Later();
  EXPECT_THAT(seen_, ElementsAre("joins", "leaves", "joins"));
}

}  // namespace
}  // namespace bfio::router
