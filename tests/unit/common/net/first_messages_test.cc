#include "common/net/first_messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace bfio {
namespace {

class FakeCall final : public FirstMessages::Call {
 public:
  bool Receive() override {
    received_at = MonotonicNow();
    ++received;
    return !over;
  }
  void OnTooLate() override {
    late_at = MonotonicNow();
    if (on_too_late) on_too_late();
    late = true;
  }

  std::function<void()> on_too_late;
  // Written before `received` and `late`.
  absl::Time received_at, late_at;
  std::atomic<int> received{0};
  std::atomic<bool> over{false}, late{false};
};

TEST(FirstMessages, ConcurrentReceivesAreBoundedAndOthersFollowInOrder) {
  FirstMessages messages({.at_once = 2, .patience = absl::Hours(1)});
  std::vector<std::shared_ptr<FakeCall>> calls;
  for (int i = 0; i < 5; ++i) {
    messages.Begin(calls.emplace_back(std::make_shared<FakeCall>()), {absl::StrCat("tenant ", i), "c"});
  }
  messages.Begin(std::make_shared<FakeCall>(), {"tenant 5", "c"});  // destroyed: takes no slot
  messages.Begin(calls.emplace_back(std::make_shared<FakeCall>()), {"tenant 6", "c"});
  EXPECT_EQ(messages.counts().receiving, 2u);
  EXPECT_EQ(messages.counts().waiting, 5u);
  EXPECT_EQ(calls[1]->received, 1);
  EXPECT_EQ(calls[2]->received, 0);
  messages.End(*calls[1]);
  EXPECT_EQ(calls[2]->received, 1);
  EXPECT_EQ(calls[3]->received, 0);
  // A call that ends while it waits takes no slot.
  calls[3]->over = true;
  messages.End(*calls[0]);
  EXPECT_EQ(calls[4]->received, 1);
  EXPECT_EQ(calls[5]->received, 0);
  for (const int i : {2, 4, 5}) messages.End(*calls[i]);
  EXPECT_EQ(calls[5]->received, 1);
  EXPECT_EQ(messages.counts().receiving, 0u);
  EXPECT_EQ(messages.counts().waiting, 0u);
  EXPECT_EQ(messages.counts().too_late, 0u);
}

TEST(FirstMessages, ReceivingAndWaitingCallsTimeOut) {
  FirstMessages messages({.at_once = 1, .patience = absl::Milliseconds(20)});
  const auto slow = std::make_shared<FakeCall>(), behind = std::make_shared<FakeCall>();
  messages.Begin(slow, {"a", "c"});
  messages.Begin(behind, {"b", "c"});
  while (!slow->late || !behind->late) std::this_thread::yield();
  EXPECT_EQ(messages.counts().too_late, 2u);
  EXPECT_EQ(messages.counts().receiving, 1u) << "until its call is over";
  EXPECT_EQ(behind->received, 0);
  messages.End(*slow);
  EXPECT_EQ(behind->received, 0);
  EXPECT_EQ(messages.counts().receiving, 0u);
}

TEST(FirstMessages, ACallThatHasWaitedHasAllTheTimeToSend) {
  constexpr absl::Duration kPatience = absl::Milliseconds(400);
  FirstMessages messages({.at_once = 1, .patience = kPatience});
  const auto slow = std::make_shared<FakeCall>(), behind = std::make_shared<FakeCall>();
  slow->on_too_late = [&] { messages.End(*slow); };
  messages.Begin(slow, {"a", "c"});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  messages.Begin(behind, {"b", "c"});
  while (!slow->late || !behind->late) std::this_thread::yield();
  // If the machine paused for 200 ms in between, the message arrived too late to be received.
  if (behind->received == 1) {
    EXPECT_GT(behind->late_at - behind->received_at, kPatience * 3 / 4);
  }
}

// A greedy tenant, or connection, has as many calls as it likes; nobody else waits for them.
TEST(FirstMessages, APeerThatReceivesNothingDoesNotWaitForAGreedyOne) {
  FirstMessages messages({.at_once = 16, .patience = absl::Hours(1), .crowded_patience = absl::Hours(1)});
  std::vector<std::shared_ptr<FakeCall>> calls;
  const auto begin = [&](const Peer& peer) {
    messages.Begin(calls.emplace_back(std::make_shared<FakeCall>()), peer);
    return calls.back();
  };
  for (int i = 0; i < 100; ++i) begin({"greedy", "one"});
  EXPECT_EQ(messages.counts().receiving, 4u);
  EXPECT_EQ(begin({"greedy", "two"})->received, 1) << "another connection of the tenant";
  for (int i = 0; i < 100; ++i) begin({"greedy", absl::StrCat(i)});
  EXPECT_EQ(messages.counts().receiving, 8u);
  EXPECT_EQ(begin({"modest", "one"})->received, 1);
}

TEST(FirstMessages, ASlowCallEndsEarlyOnlyForAPeerThatReceivesNothing) {
  FirstMessages messages(
      {.at_once = 1, .patience = absl::Hours(1), .crowded_patience = absl::Milliseconds(20)});
  const auto slow = std::make_shared<FakeCall>(), own = std::make_shared<FakeCall>(),
             other = std::make_shared<FakeCall>();
  slow->on_too_late = [&] { messages.End(*slow); };
  messages.Begin(slow, {"a", "c"});
  messages.Begin(own, {"a", "c"});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(slow->late) << "only its own connection waits";
  messages.Begin(other, {"b", "c"});
  while (!slow->late) std::this_thread::yield();
  while (own->received + other->received == 0) std::this_thread::yield();
}

// A message may announce any size.
TEST(FirstMessages, TheConnectionThatSendsTooMuchLosesItsCalls) {
  FirstMessages messages({.at_once = 16, .patience = absl::Hours(1), .bytes = 1000});
  std::atomic<int64_t> sent[2] = {5000, 0};
  messages.set_received([&](const std::string& connection) { return sent[connection == "b"].load(); });
  const auto greedy = std::make_shared<FakeCall>(), modest = std::make_shared<FakeCall>();
  messages.Begin(greedy, {"a", "a", "a"});
  messages.Begin(modest, {"b", "b", "b"});
  sent[0] = 5600;
  sent[1] = 300;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(greedy->late || modest->late);
  sent[0] = 5800;
  while (!greedy->late) std::this_thread::yield();
  EXPECT_FALSE(modest->late);
}

TEST(FirstMessages, OfTheWaitingCallsATenantHasAShare) {
  FirstMessages messages({.at_once = 1, .patience = absl::Hours(1), .waiting = 8});
  std::vector<std::shared_ptr<FakeCall>> calls;
  for (int i = 0; i < 20; ++i)
    messages.Begin(calls.emplace_back(std::make_shared<FakeCall>()), {"greedy", absl::StrCat(i)});
  EXPECT_EQ(messages.counts().waiting, 4u);
  EXPECT_EQ(messages.counts().too_late, 15u);
  const auto other = std::make_shared<FakeCall>();
  messages.Begin(other, {"modest", "c"});
  EXPECT_FALSE(other->late);
  EXPECT_EQ(messages.counts().waiting, 5u);
}

}  // namespace
}  // namespace bfio
