#include "worker/link/step_loop.h"

#include <optional>

#include "common/base/rng.h"
#include "gmock/gmock.h"

namespace bfio::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr int64_t kCapacity = 1 << 20;
const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

SequenceRequest Request(Handle handle, int64_t max_new = 10) {
  return {.handle = handle, .prompt = {1, 2, 3}, .prompt_length = 3, .max_new_tokens = max_new};
}

StepOutput Output(std::vector<StepOutput::Token> tokens, std::vector<StepOutput::Finish> finished = {}) {
  StepOutput output;
  output.tokens = std::move(tokens);
  output.finished = std::move(finished);
  return output;
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

// Random admissions, steps and drops against a map, with a limit that often refuses requests. Handles are
// used again: the router may generate a request again that ended, or whose end it dropped.
TEST(HeldRequests, AgreesWithAMapAndStaysWithinItsLimit) {
  constexpr int64_t kBound = 6'000;
  constexpr absl::Duration kRetain = absl::Seconds(5);
  struct Kept {
    std::vector<uint32_t> earlier, tokens;
    std::optional<absl::Time> ended;
  };
  Rng rng(3);
  int refused = 0, yielded = 0;
  for (int round = 0; round < 20; ++round) {
    HeldRequests held(kBound);
    held.set_retain(kRetain);
    std::map<Handle, Kept> kept;
    std::map<Handle, size_t> running;  // how many tokens are left
    for (int step = 0; step < 300; ++step) {
      const absl::Time now = kNow + absl::Seconds(step);
      const Handle handle = 1 + rng.Below(60);
      if (rng.Below(3) == 0 && !running.contains(handle)) {
        const size_t length = 1 + rng.Below(600);
        const bool noted = rng.Below(8) != 0;
        running[handle] = length;
        kept.erase(handle);
        Kept fresh = {{static_cast<uint32_t>(step)}, {}, {}};
        held.Admit(Request(handle, static_cast<int64_t>(length)),
                   noted ? RequestNote{"n", fresh.earlier} : RequestNote());
        // Whether it is kept, and what yields to it, depends on bytes: nothing that runs does, and of what
        // has ended the newest last.
        std::set<Handle> there;
        for (const Announcement& part : held.Announce(1)) {
          for (const HeldRequest& one : part.requests) there.insert(one.request.handle);
        }
        absl::Time newest_gone = absl::InfinitePast(), oldest_left = absl::InfiniteFuture();
        for (auto it = kept.begin(); it != kept.end();) {
          const auto& ended = it->second.ended;
          if (ended && there.contains(it->first)) oldest_left = std::min(oldest_left, *ended);
          const bool gone = ended && !there.contains(it->first);
          if (gone) newest_gone = std::max(newest_gone, *ended), ++yielded;
          it = gone ? kept.erase(it) : std::next(it);
        }
        EXPECT_LE(newest_gone, oldest_left);
        if (there.contains(handle)) {
          kept[handle] = std::move(fresh);
        } else if (noted) {
          ++refused;
          EXPECT_EQ(oldest_left, absl::InfiniteFuture()) << "refused beside what has ended";
          EXPECT_GT(held.bytes() + 600 + 4 * static_cast<int64_t>(length), kBound);
        }
      }
      StepOutput output;
      for (auto it = running.begin(); it != running.end();) {
        const auto token = static_cast<uint32_t>(rng.Below(1000));
        output.tokens.push_back({it->first, token});
        const bool ends = --it->second == 0 || rng.Below(20) == 0;
        if (ends) output.finished.push_back({it->first, FinishCause::kLength});
        if (const auto one = kept.find(it->first); one != kept.end()) {
          one->second.tokens.push_back(token);
          if (ends) one->second.ended = now;
        }
        it = ends ? running.erase(it) : std::next(it);
      }
      held.Take(output, now);
      std::erase_if(kept,
                    [&](const auto& one) { return one.second.ended && now - *one.second.ended >= kRetain; });
      if (rng.Below(10) == 0) {
        held.Drop(handle);
        kept.erase(handle);
        running.erase(handle);
      }
      ASSERT_LE(held.bytes(), kBound);
      auto expected = kept.begin();
      for (const Announcement& part : held.Announce(5)) {
        EXPECT_EQ(part.epoch, 5u);
        for (const HeldRequest& one : part.requests) {
          ASSERT_NE(expected, kept.end());
          ASSERT_EQ(one.request.handle, expected->first);
          ASSERT_EQ(one.tokens, expected->second.tokens);
          EXPECT_EQ(one.ended.has_value(), expected->second.ended.has_value());
          EXPECT_EQ(one.note.origin, "n");
          EXPECT_EQ(one.note.earlier_tokens, expected->second.earlier);
          EXPECT_THAT(one.request.prompt, ElementsAre(1, 2, 3));
          ++expected;
        }
      }
      ASSERT_EQ(expected, kept.end());
    }
    for (Handle handle = 1; handle <= 60; ++handle) held.Drop(handle);
    EXPECT_EQ(held.bytes(), 0);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(yielded, 100);
}

}  // namespace
}  // namespace bfio::worker
