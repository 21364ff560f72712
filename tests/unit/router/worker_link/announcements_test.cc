// What workers announce after a restart of the router, from their messages to the requests that are
// recovered: whatever one of them states, the requests of the others are recovered, and it is charged no more
// than it has.
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/rng.h"
#include "router/requests/request_lifecycle.h"
#include "router/worker_link/held_request.h"
#include "router/worker_link/wire.h"
#include "router/worker_link/worker_link_service.h"
#include "tests/testing/from_text.h"

namespace bfio::router {
namespace {

using bfio::testing::FromText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSlots = 4;
constexpr int64_t kKvTokens = 100;

class Handler final : public WorkerHandler {
 public:
  void OnWorkerEvent(std::shared_ptr<WorkerChannel>, WorkerEvent event) override {
    events.push_back(std::move(event));
  }
  core::RequestId NextId() override { return next_id++; }

  std::vector<WorkerEvent> events;
  core::RequestId next_id = 1;
};

// A request as some router gave it to that worker.
v1::HeldRequest Given(const TicketKeys* keys, const std::string& worker, const std::string& name,
                      uint64_t handle, uint32_t max_new_tokens = 10) {
  ClientRequest client;
  client.request_id = name;
  client.prompt_tokens = 3;
  client.max_new_tokens = max_new_tokens;
  client.resumable = true;
  v1::HeldRequest held;
  v1::Assignment& assignment = *held.mutable_assignment();
  ToWire(Assignment{.id = handle, .request = &client}, assignment);
  if (keys != nullptr) SignOrigin(*keys, worker, absl::Now(), assignment);
  held.add_token_ids(7);
  return held;
}

class AnnouncementsTest : public ::testing::TestWithParam<bool> {
 protected:
  const TicketKeys* keys() const { return keys_.get(); }

  // A worker that announces these requests after the restart, as running.
  std::shared_ptr<SessionChannel> Announce(const std::string& worker,
                                           const std::vector<v1::HeldRequest>& held) {
    auto channel = std::make_shared<SessionChannel>(
        ++member_, "peer",
        SessionChannel::Options{.handler = &handler_, .refusals = &refusals_, .keys = keys_});
    handler_.events.clear();
    v1::WorkerMessage message =
        FromText<v1::WorkerMessage>(absl::StrCat("hello { worker_id: '", worker, "' slots: ", kSlots,
                                                 " kv_tokens: ", kKvTokens, " max_sequence_tokens: 50 }"));
    channel->OnMessage(nullptr, message);
    message.mutable_announcement();
    v1::EpochReady ready;
    for (const v1::HeldRequest& one : held) {
      *message.mutable_announcement()->add_requests() = one;
      if (ready.active_size() == kSlots) continue;
      v1::ActiveRequest& active = *ready.add_active();
      active.set_handle(one.assignment().handle());
      active.set_generated_tokens(1);
    }
    channel->OnMessage(nullptr, message);
    *message.mutable_epoch_ready() = ready;
    channel->OnMessage(nullptr, message);
    auto& announcement = std::get<Announcement>(handler_.events.at(1));
    const auto& epoch_ready = std::get<EpochReady>(handler_.events.at(2));
    last_ = requests_.Recover({worker, kKvTokens, epoch_ready.active}, std::move(announcement.requests));
    return channel;
  }

  const std::shared_ptr<const TicketKeys> keys_ =
      GetParam() ? std::make_shared<const TicketKeys>(*TicketKeys::Parse(std::string(32, 'k'), "keys"))
                 : nullptr;
  RefusalLog refusals_;
  Handler handler_;
  MemberId member_ = 0;
  core::Cluster cluster_{{}, {"fcfs", {}}};
  Tenants tenants_{{}};
  OverloadControl overload_{{}};
  RequestLifecycle requests_{{}, &cluster_, &tenants_, &overload_, MonotonicNow()};
  std::vector<core::RequestSpec> last_;
};

INSTANTIATE_TEST_SUITE_P(Keys, AnnouncementsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "with_keys" : "without_keys"; });

TEST_P(AnnouncementsTest, AWorkersListsEndNoRequestOfAnother) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    // Handles are small and consecutive, as if they could be guessed.
    std::map<std::string, std::vector<v1::HeldRequest>> given;
    uint64_t handle = 1;
    for (const std::string worker : {"a", "b", "c"}) {
      for (int i = 0; i < kSlots; ++i)
        given[worker].push_back(Given(keys(), worker, absl::StrCat(seed, worker, i), handle++));
    }
    // Its own requests, changed; those of others, where it can have seen them; and any handle.
    std::vector<v1::HeldRequest> lists;
    for (uint64_t n = rng.Below(40); n > 0; --n) {
      v1::HeldRequest one = given["a"][rng.Below(kSlots)];
      switch (rng.Below(5)) {
        case 0: break;
        case 1: one.mutable_assignment()->set_handle(rng.Below(handle)); break;
        case 2: one.mutable_assignment()->set_handle(uint64_t{1} << (62 + rng.Below(2))); break;
        case 3:
          one.mutable_assignment()->set_prompt_length(static_cast<uint32_t>(1 + rng.Below(1 << 16)));
          break;
        default:
          // With keys it may even know the requests of others by name, or have got hold of their origins.
          if (keys() != nullptr)
            one = rng.Below(2) == 0
                      ? given["b"][rng.Below(kSlots)]
                      : Given(nullptr, "a", absl::StrCat(seed, "b", rng.Below(kSlots)), rng.Below(handle));
      }
      lists.push_back(one);
    }
    Announce("a", lists);
    EXPECT_LE(last_.size(), size_t{kSlots}) << "no more than it has slots";
    for (const std::string worker : {"b", "c"}) {
      Announce(worker, given[worker]);
      EXPECT_EQ(last_.size(), size_t{kSlots}) << worker;
    }
    EXPECT_LE(overload_.committed_kv(), 3 * kKvTokens * static_cast<int64_t>(seed));
  }
}

TEST_P(AnnouncementsTest, WhatIsHeldIsChargedUpToTheHoldersMemory) {
  std::vector<v1::HeldRequest> held;
  for (int i = 0; i < kSlots; ++i)
    held.push_back(Given(keys(), "a", absl::StrCat("r", i), static_cast<uint64_t>(i) + 1, 60'000));
  Announce("a", held);
  EXPECT_EQ(last_.size(), size_t{kSlots});
  EXPECT_EQ(overload_.committed_kv(), kKvTokens) << "so others are accepted as if it were full";
}

TEST_P(AnnouncementsTest, TheWorkerKeepsItsHandlesAndTheRouterItsIds) {
  const uint64_t before = handler_.next_id;
  const auto a = Announce("a", {Given(keys(), "a", "r", 7)});
  const auto b = Announce("b", {Given(keys(), "b", "s", 7)});
  ASSERT_EQ(last_.size(), 1u);
  EXPECT_EQ(last_[0].id, before + 1) << "the same handle of another worker is another request";
  const v1::WorkerMessage report = FromText<v1::WorkerMessage>(
      "step_report { handles: [7, 8] token_ids: [1, 2] completion_hints: [0, 1] finished { handle: 7 } "
      "token_budget: 1 pending_prompts { handle: 7 tokens: 1 } }");
  for (const auto& [channel, id] : {std::pair(a, before), {b, before + 1}}) {
    handler_.events.clear();
    channel->OnMessage(nullptr, report);
    const auto& converted = std::get<StepReport>(handler_.events.at(0));
    EXPECT_EQ(converted.tokens[0].id, id);
    EXPECT_EQ(converted.finished[0].id, id);
    EXPECT_EQ(converted.hints[0].id, id);
    EXPECT_EQ(converted.prefill->prompts[0].id, id);
    EXPECT_GT(converted.tokens[1].id, uint64_t{1} << 20) << "not the id of any request";
  }
}

TEST(Handles, TheCipherIsSpeck64) {
  // The test vector of its authors (Beaulieu et al., 2013, appendix C).
  const HandleCipher cipher({0x03020100, 0x0b0a0908, 0x13121110, 0x1b1a1918});
  EXPECT_EQ(cipher.Encrypt(0x3b7265747475432d), 0x8c6fa548454e028b);
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t id = rng.Next();
    EXPECT_EQ(cipher.Decrypt(cipher.Encrypt(id)), id);
  }
  EXPECT_NE(HandleCipher::Random().Encrypt(1), HandleCipher::Random().Encrypt(1)) << "a key for each link";
}

TEST(Handles, AWorkerAnnouncesABoundedNumber) {
  Handles handles;
  core::RequestId next = 0;
  for (uint64_t handle = 1; handle <= Handles::kMostAnnounced; ++handle)
    ASSERT_EQ(handles.Announced(handle, [&] { return ++next; }), handle);
  EXPECT_FALSE(handles.Announced(0, [&] { return ++next; }));
  EXPECT_EQ(handles.Announced(5, [&] { return ++next; }), 5u) << "again";
}

TEST(HeldOrigin, OnlyWhatTheWorkerWasGivenIsProven) {
  const TicketKeys keys = *TicketKeys::Parse(std::string(32, 'k'), "keys");
  const absl::Time now = absl::Now();
  const v1::Assignment given = Given(&keys, "a", "r", 7).assignment();
  EXPECT_TRUE(OriginIsProven(keys, "a", now, given));
  EXPECT_TRUE(FromHeld(Given(&keys, "a", "r", 7), RequestLimits()).ok());
  EXPECT_FALSE(OriginIsProven(keys, "b", now, given)) << "of another worker";
  EXPECT_FALSE(OriginIsProven(keys, "a", now + kOriginLife, given)) << "too late";
  EXPECT_FALSE(OriginIsProven(*TicketKeys::Parse(std::string(32, 'o'), "keys"), "a", now, given));
  EXPECT_FALSE(OriginIsProven(keys, "a", now, Given(nullptr, "a", "r", 7).assignment())) << "not signed";
  EXPECT_FALSE(OriginIsProven(keys, "a", now, Given(nullptr, "a", "", 7).assignment()));
  v1::GenerateRequest other;
  other.set_request_id("another");
  const std::vector<std::pair<const char*, std::function<void(v1::Assignment&)>>> changes = {
      {"handle", [](v1::Assignment& to) { to.set_handle(8); }},
      {"prompt_length", [](v1::Assignment& to) { to.set_prompt_length(4); }},
      {"first_index", [](v1::Assignment& to) { to.set_first_index(1); }},
      {"origin", [&](v1::Assignment& to) { to.mutable_origin()->append(other.SerializeAsString()); }},
      {"unknown field", [](v1::Assignment& to) { to.mutable_origin()->append("\xf8\x7f\x01"); }},
      {"no message", [](v1::Assignment& to) { to.set_origin("\xff"); }},
  };
  for (const auto& [what, change] : changes) {
    v1::Assignment changed = given;
    change(changed);
    EXPECT_FALSE(OriginIsProven(keys, "a", now, changed)) << what;
  }
}

// --- held request ---

constexpr uint64_t kSeed = 1234;

ClientRequest Client(bool ids) {
  ClientRequest request;
  request.request_id = "r1";
  if (ids) request.prompt = {5, 6, 7};
  request.prompt_tokens = 3;
  request.max_new_tokens = 10;
  request.stop_token_ids = {99};
  request.ignore_eos = true;
  request.sampling.temperature = 0.5f;
  request.sampling.top_p = 0.75f;
  request.sampling.top_k = 40;
  request.tenant = "acme";
  request.priority = 3;
  request.predicted_output_tokens = 8;
  request.ttft_objective = absl::Milliseconds(1500) + absl::Nanoseconds(7);
  request.resumable = true;
  request.resume_token = "secret";
  return request;
}

// The message in which a worker returns a request that has generated `before` in earlier placements and
// `here` in this one.
v1::HeldRequest Held(const ClientRequest& client, const std::vector<uint32_t>& before,
                     const std::vector<uint32_t>& here, const Logprobs* logprobs = nullptr) {
  Assignment assignment;
  assignment.id = 42;
  assignment.request = &client;
  assignment.history = &before;
  assignment.history_logprobs = logprobs;
  assignment.first_index = static_cast<uint32_t>(before.size());
  assignment.seed = kSeed;
  v1::HeldRequest held;
  ToWire(assignment, *held.mutable_assignment());
  held.mutable_token_ids()->Add(here.begin(), here.end());
  return held;
}

TEST(HeldRequest, SurvivesTheRoundTrip) {
  for (const bool ids : {true, false}) {
    const v1::HeldRequest held = Held(Client(ids), {100, 101}, {102});
    v1::GenerateRequest origin;
    ASSERT_TRUE(origin.ParseFromString(held.assignment().origin()));
    EXPECT_EQ(origin.ShortDebugString(),
              "request_id: \"r1\" max_new_tokens: 10 stop_token_ids: 99 ignore_eos: true "
              "sampling { temperature: 0.5 top_p: 0.75 top_k: 40 seed: 1234 } tenant: \"acme\" priority: 3 "
              "predicted_output_tokens: 8 resumable: true resume_token: \"secret\" "
              "ttft_objective { seconds: 1 nanos: 500000007 }");
    const auto state = FromHeld(held, RequestLimits());
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->id, 42u);
    EXPECT_EQ(state->first_index, 2u);
    EXPECT_THAT(state->tokens, ElementsAre(100, 101, 102));
    EXPECT_FALSE(state->ended.has_value());
    EXPECT_EQ(state->request.prompt, Client(ids).prompt);
    EXPECT_EQ(state->request.prompt_tokens, 3u);
    EXPECT_EQ(state->request.sampling.seed, kSeed) << "which the router has chosen for it";
    EXPECT_EQ(Held(state->request, {100, 101}, {102}).ShortDebugString(), held.ShortDebugString());
  }
}

TEST(HeldRequest, LogprobsOfAllPlacementsComeBack) {
  ClientRequest client = Client(true);
  client.sampling.logprobs = 1;
  // Those of the first token are gone: the client had it before.
  const Logprobs known{{-2}, {{11, -2}}};
  v1::HeldRequest held = Held(client, {10, 11}, {12}, &known);
  EXPECT_EQ(held.assignment().sampling().logprobs(), 1u);
  ToWire(Logprobs{{-3}, {{5, -0.5}}}.view(), *held.mutable_logprobs());
  const absl::StatusOr<HeldRequest> back = FromHeld(held, {});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->request.sampling.logprobs, 1u);
  EXPECT_THAT(back->logprobs.tokens, ElementsAre(-2, -3));
  EXPECT_THAT(back->logprobs.top, ElementsAre(TopToken{11, -2}, TopToken{5, -0.5}));
  held.mutable_logprobs()->add_top_token_ids(6);
  EXPECT_FALSE(FromHeld(held, {}).ok()) << "an id without its value";
  held.mutable_logprobs()->add_top_logprobs(-1);
  EXPECT_FALSE(FromHeld(held, {}).ok()) << "two alternatives where one was asked for";
  held.clear_logprobs();
  EXPECT_FALSE(FromHeld(held, {}).ok()) << "a token without its log-probability";
}

TEST(HeldRequest, AnEndIsKeptAndAFullRequestHasEnded) {
  v1::HeldRequest held = Held(Client(false), {}, {1, 2});
  held.set_ended(v1::FINISH_REASON_STOP);
  EXPECT_EQ(FromHeld(held, RequestLimits())->ended, FinishReason::kStop);
  EXPECT_EQ(FromHeld(Held(Client(false), {}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), RequestLimits())->ended,
            FinishReason::kLength);
}

TEST(HeldRequest, InconsistentRequestsAreRefused) {
  for (const auto& [change, part] : std::vector<std::pair<std::string, std::string>>{
           {"assignment { origin: '\\xff' }", "cannot be parsed"},
           {"assignment { origin: '' }", "max_new_tokens is 0"},
           {"assignment { first_index: 4 }", "first_index 4"},
           {"assignment { prompt_length: 9 }", "prompt_length 9"},
           {"token_ids: [1, 1, 1, 1, 1, 1, 1, 1, 1]", "11 tokens, more than its max_new_tokens, 10"},
       }) {
    const auto held = bfio::testing::FromText(change, Held(Client(true), {100}, {101}));
    const auto state = FromHeld(held, RequestLimits());
    EXPECT_TRUE(absl::IsInvalidArgument(state.status())) << change;
    EXPECT_THAT(std::string(state.status().message()), HasSubstr(part));
  }
  v1::HeldRequest without_prompt = Held(Client(true), {100}, {101});
  without_prompt.mutable_assignment()->clear_prompt_token_ids();
  EXPECT_THAT(std::string(FromHeld(without_prompt, RequestLimits()).status().message()),
              HasSubstr("0 earlier_token_ids do not match first_index 1"));
}

}  // namespace
}  // namespace bfio::router
