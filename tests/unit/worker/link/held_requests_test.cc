#include "worker/link/held_requests.h"

#include <map>
#include <utility>
#include <vector>

#include "common/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kCapacity = 1 << 20;
const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

SequenceRequest Request(Handle handle, int64_t max_new = 10) {
  SequenceRequest request;
  request.handle = handle;
  request.prompt = {1, 2, 3};
  request.prompt_length = 3;
  request.max_new_tokens = max_new;
  return request;
}

StepOutput Output(std::vector<StepOutput::Token> tokens, std::vector<StepOutput::Finish> finished = {}) {
  StepOutput output;
  output.tokens = std::move(tokens);
  output.finished = std::move(finished);
  return output;
}

std::vector<Handle> Handles(const HeldRequests& held) {
  std::vector<Handle> handles;
  for (const Announcement& part : held.Announce(1)) {
    for (const HeldRequest& one : part.requests) handles.push_back(one.request.handle);
  }
  return handles;
}

TEST(HeldRequests, KeepsEveryTokenOfRequestsWithANote) {
  HeldRequests held(kCapacity);
  held.Admit(Request(7), {"note", {9}});
  held.Admit(Request(8), {});
  held.Take(Output({{7, 100}, {8, 200}}), kNow);
  held.Take(Output({{7, 101}}), kNow);
  const std::vector<Announcement> parts = held.Announce(5);
  ASSERT_THAT(parts, SizeIs(1));
  EXPECT_EQ(parts[0].epoch, 5u);
  ASSERT_THAT(parts[0].requests, SizeIs(1));
  const HeldRequest& one = parts[0].requests[0];
  EXPECT_EQ(one.request.handle, 7u);
  EXPECT_EQ(one.note.origin, "note");
  EXPECT_THAT(one.note.earlier_tokens, ElementsAre(9));
  EXPECT_THAT(one.request.prompt, ElementsAre(1, 2, 3));
  EXPECT_THAT(one.tokens, ElementsAre(100, 101));
  EXPECT_FALSE(one.ended.has_value());
}

TEST(HeldRequests, LogprobsAreKeptAndCountedBeforeTheyAreThere) {
  HeldRequests plain(kCapacity), asking(kCapacity);
  asking.set_retain(absl::Seconds(2));
  SequenceRequest request = Request(7);
  plain.Admit(request, {"note", {}});
  request.sampling.logprobs = 2;
  asking.Admit(request, {"note", {}});
  // 4 bytes for the log-probability of a token, and 8 for each alternative.
  EXPECT_EQ(asking.bytes() - plain.bytes(), request.max_new_tokens * (4 + 2 * 8));
  StepOutput output = Output({{6, 99}, {7, 100}}, {{7, FinishCause::kStop}});
  output.log_probabilities = {-1, -2};
  output.alternatives = {{1, {{100, -2}, {5, -3}}}};
  asking.Take(output, kNow);
  EXPECT_EQ(asking.bytes() - plain.bytes(), 4 + 2 * 8 - (request.max_new_tokens - 1) * 4)
      << "one token was made";
  const std::vector<Announcement> parts = asking.Announce(1);
  const Logprobs& logprobs = parts.at(0).requests.at(0).logprobs;
  EXPECT_THAT(logprobs.tokens, ElementsAre(-2));
  EXPECT_THAT(logprobs.top, ElementsAre(TopToken{100, -2}, TopToken{5, -3}));
}

TEST(HeldRequests, EndedRequestsAreKeptForAWhile) {
  HeldRequests held(kCapacity);
  held.set_retain(absl::Seconds(2));
  held.Admit(Request(1), {"n", {}});
  held.Admit(Request(2), {"n", {}});
  held.Take(Output({{1, 5}, {2, 6}}, {{1, FinishCause::kStop}}), kNow);
  held.Take(Output({{2, 7}}), kNow + absl::Seconds(1));
  EXPECT_THAT(Handles(held), ElementsAre(1, 2));
  EXPECT_EQ(held.Announce(1)[0].requests[0].ended, FinishCause::kStop);
  held.Take(Output({{2, 8}}), kNow + absl::Seconds(2));
  EXPECT_THAT(Handles(held), ElementsAre(2));
}

TEST(HeldRequests, EndedRequestsYieldToRunningOnes) {
  HeldRequests held(2000);
  held.set_retain(absl::Hours(1));
  held.Admit(Request(1, 200), {"n", {}});
  held.Take(Output({{1, 5}}, {{1, FinishCause::kLength}}), kNow);
  held.Admit(Request(2, 300), {"n", {}});
  EXPECT_THAT(Handles(held), ElementsAre(2));
  held.Admit(Request(3, 300), {"n", {}});
  EXPECT_THAT(Handles(held), ElementsAre(2)) << "no free memory, and nothing that has ended";
}

// The router did not receive the end and places the request again, on the same worker.
TEST(HeldRequests, ARegeneratedRequestStartsAgain) {
  HeldRequests held(kCapacity);
  held.set_retain(absl::Seconds(2));
  held.Admit(Request(1), {"n", {}});
  held.Take(Output({{1, 5}, {1, 6}}, {{1, FinishCause::kStop}}), kNow);
  held.Admit(Request(1), {"n", {5}});
  held.Take(Output({{1, 6}}), kNow + absl::Seconds(3));
  const std::vector<Announcement> parts = held.Announce(1);
  ASSERT_THAT(parts, SizeIs(1)) << "what ended before is over, not what runs";
  EXPECT_THAT(parts[0].requests[0].tokens, ElementsAre(6));
  EXPECT_THAT(parts[0].requests[0].note.earlier_tokens, ElementsAre(5));
  EXPECT_FALSE(parts[0].requests[0].ended.has_value());
  held.Take(Output({{1, 7}}, {{1, FinishCause::kLength}}), kNow + absl::Seconds(4));
  held.Take(Output({}), kNow + absl::Seconds(6));
  EXPECT_EQ(held.bytes(), 0);
}

// The request ended, was dropped, and is placed here again: the running one has not ended.
TEST(HeldRequests, ADroppedHandleMayBeUsedAgain) {
  HeldRequests held(kCapacity);
  held.set_retain(absl::Seconds(2));
  held.Admit(Request(1), {"n", {}});
  held.Take(Output({{1, 5}}, {{1, FinishCause::kStop}}), kNow);
  held.Drop(1);
  held.Admit(Request(1), {"n", {5}});
  held.Take(Output({{1, 6}}), kNow + absl::Hours(1));
  EXPECT_THAT(Handles(held), ElementsAre(1));
}

// A running request must not yield its memory to a new one either.
TEST(HeldRequests, AReusedHandleDoesNotYieldToNewRequests) {
  HeldRequests held(2000);
  held.set_retain(absl::Hours(1));
  held.Admit(Request(1, 10), {"n", {}});
  held.Take(Output({{1, 5}}, {{1, FinishCause::kStop}}), kNow);
  held.Drop(1);
  held.Admit(Request(1, 200), {"n", {}});
  held.Admit(Request(2, 300), {"n", {}});
  EXPECT_THAT(Handles(held), ElementsAre(1));
}

TEST(HeldRequests, DroppedRequestsAreNotKept) {
  HeldRequests held(kCapacity);
  held.Admit(Request(1), {"n", {}});
  held.Drop(1);
  held.Drop(1);
  held.Take(Output({{1, 5}}), kNow);
  EXPECT_THAT(held.Announce(1), IsEmpty());
  EXPECT_EQ(held.bytes(), 0);
}

TEST(HeldRequests, AnnouncementsStayBelowTheMessageLimit) {
  HeldRequests held(int64_t{64} << 20);
  for (Handle handle = 1; handle <= 20; ++handle) {
    SequenceRequest request = Request(handle);
    request.prompt.assign(100'000, 7);
    request.prompt_length = 100'000;
    held.Admit(std::move(request), {"n", {}});
  }
  size_t requests = 0;
  for (const Announcement& part : held.Announce(1)) {
    EXPECT_THAT(part.requests, SizeIs(::testing::Le(2u)));
    requests += part.requests.size();
  }
  EXPECT_EQ(requests, 20u);
}

// Random admissions, steps and drops against a map, with a limit that often refuses requests.
TEST(HeldRequests, AgreesWithAMapAndStaysWithinItsLimit) {
  Rng rng(3);
  for (int round = 0; round < 20; ++round) {
    constexpr int64_t kBound = 20'000;
    HeldRequests held(kBound);
    held.set_retain(absl::Seconds(5));
    std::map<Handle, std::vector<uint32_t>> running;
    std::map<Handle, size_t> lengths;
    Handle next = 1;
    for (int step = 0; step < 300; ++step) {
      if (rng.Below(3) == 0) {
        const size_t before = held.size();
        lengths[next] = 1 + rng.Below(600);
        held.Admit(Request(next, static_cast<int64_t>(lengths[next])), {"n", {}});
        const std::vector<Handle> now = Handles(held);
        if (!now.empty() && now.back() == next) running[next] = {};
        EXPECT_LE(held.size(), before + 1);
        ++next;
      }
      StepOutput output;
      for (auto it = running.begin(); it != running.end();) {
        const auto token = static_cast<uint32_t>(rng.Below(1000));
        it->second.push_back(token);
        output.tokens.push_back({it->first, token});
        if (rng.Below(20) == 0 || it->second.size() == lengths[it->first]) {
          output.finished.push_back({it->first, FinishCause::kLength});
          it = running.erase(it);
        } else {
          ++it;
        }
      }
      held.Take(output, kNow + absl::Seconds(step));
      if (!running.empty() && rng.Below(10) == 0) {
        held.Drop(running.begin()->first);
        running.erase(running.begin());
      }
      ASSERT_LE(held.bytes(), kBound);
      std::map<Handle, std::vector<uint32_t>> seen;
      for (const Announcement& part : held.Announce(1)) {
        for (const HeldRequest& one : part.requests) {
          if (!one.ended.has_value()) seen[one.request.handle] = one.tokens;
        }
      }
      ASSERT_EQ(seen, running);
    }
  }
}

}  // namespace
}  // namespace bfio::worker
