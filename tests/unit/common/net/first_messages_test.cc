#include "common/net/first_messages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace bfio {
namespace {

class FakeCall final : public FirstMessages::Call {
 public:
  bool Receive() override {
    ++received;
    return !over;
  }
  void OnTooLate() override { late = true; }

  std::atomic<int> received{0};
  std::atomic<bool> over{false}, late{false};
};

TEST(FirstMessages, ConcurrentReceivesAreBoundedAndOthersFollowInOrder) {
  FirstMessages messages({.at_once = 2, .patience = absl::Hours(1)});
  std::vector<std::shared_ptr<FakeCall>> calls;
  for (int i = 0; i < 5; ++i) messages.Begin(calls.emplace_back(std::make_shared<FakeCall>()));
  EXPECT_EQ(messages.counts().receiving, 2u);
  EXPECT_EQ(messages.counts().waiting, 3u);
  EXPECT_EQ(calls[1]->received, 1);
  EXPECT_EQ(calls[2]->received, 0);
  messages.End(*calls[1]);
  EXPECT_EQ(calls[2]->received, 1);
  EXPECT_EQ(calls[3]->received, 0);
  // A call that ends while it waits takes no slot.
  calls[3]->over = true;
  messages.End(*calls[0]);
  EXPECT_EQ(calls[4]->received, 1);
  messages.End(*calls[2]);
  messages.End(*calls[4]);
  EXPECT_EQ(messages.counts().receiving, 0u);
  EXPECT_EQ(messages.counts().waiting, 0u);
  EXPECT_EQ(messages.counts().too_late, 0u);
}

TEST(FirstMessages, ADestroyedCallTakesNoSlot) {
  FirstMessages messages({.at_once = 1, .patience = absl::Hours(1)});
  const auto first = std::make_shared<FakeCall>(), last = std::make_shared<FakeCall>();
  messages.Begin(first);
  messages.Begin(std::make_shared<FakeCall>());
  messages.Begin(last);
  messages.End(*first);
  EXPECT_EQ(last->received, 1);
}

TEST(FirstMessages, ReceivingAndWaitingCallsTimeOut) {
  FirstMessages messages({.at_once = 1, .patience = absl::Milliseconds(20)});
  const auto slow = std::make_shared<FakeCall>(), behind = std::make_shared<FakeCall>();
  messages.Begin(slow);
  messages.Begin(behind);
  while (!slow->late || !behind->late) std::this_thread::yield();
  EXPECT_EQ(messages.counts().too_late, 2u);
  EXPECT_EQ(messages.counts().receiving, 1u) << "until its call is over";
  EXPECT_EQ(behind->received, 0);
  messages.End(*slow);
  EXPECT_EQ(behind->received, 0);
  EXPECT_EQ(messages.counts().receiving, 0u);
}

}  // namespace
}  // namespace bfio
