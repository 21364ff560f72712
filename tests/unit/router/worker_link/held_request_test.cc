#include "router/worker_link/held_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/rng.h"
#include "router/worker_link/to_wire.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
                     const std::vector<uint32_t>& here) {
  Assignment assignment;
  assignment.id = 42;
  assignment.request = &client;
  assignment.history = &before;
  assignment.first_index = static_cast<uint32_t>(before.size());
  assignment.seed = kSeed;
  v1::HeldRequest held;
  ToWire(assignment, *held.mutable_assignment());
  held.mutable_token_ids()->Add(here.begin(), here.end());
  return held;
}

TEST(HeldRequest, SurvivesTheRoundTrip) {
  for (const bool ids : {true, false}) {
    const ClientRequest client = Client(ids);
    const auto state = FromHeld(Held(client, {100, 101}, {102}), RequestLimits());
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->id, 42u);
    EXPECT_EQ(state->first_index, 2u);
    EXPECT_THAT(state->tokens, ElementsAre(100, 101, 102));
    EXPECT_FALSE(state->ended.has_value());
    // The client's whole request, and the seed that the router has chosen for it.
    const ClientRequest& request = state->request;
    EXPECT_EQ(request.request_id, client.request_id);
    EXPECT_EQ(request.prompt, client.prompt);
    EXPECT_EQ(request.prompt_tokens, client.prompt_tokens);
    EXPECT_EQ(request.max_new_tokens, client.max_new_tokens);
    EXPECT_EQ(request.stop_token_ids, client.stop_token_ids);
    EXPECT_EQ(request.ignore_eos, client.ignore_eos);
    EXPECT_EQ(request.sampling.temperature, client.sampling.temperature);
    EXPECT_EQ(request.sampling.top_p, client.sampling.top_p);
    EXPECT_EQ(request.sampling.top_k, client.sampling.top_k);
    EXPECT_EQ(request.sampling.seed, kSeed);
    EXPECT_EQ(request.tenant, client.tenant);
    EXPECT_EQ(request.priority, client.priority);
    EXPECT_EQ(request.predicted_output_tokens, client.predicted_output_tokens);
    EXPECT_EQ(request.ttft_objective, client.ttft_objective);
    EXPECT_TRUE(request.resumable);
    EXPECT_EQ(request.resume_token, client.resume_token);
  }
}

TEST(HeldRequest, LogprobsOfAllPlacementsComeBack) {
  ClientRequest client = Client(true);
  client.sampling.logprobs = 1;
  const std::vector<uint32_t> before = {10, 11};
  // Those of the first token are gone: the client had it before.
  const Logprobs known{{-2}, {{11, -2}}};
  Assignment assignment;
  assignment.id = 42;
  assignment.request = &client;
  assignment.history = &before;
  assignment.history_logprobs = &known;
  assignment.first_index = 2;
  v1::HeldRequest held;
  ToWire(assignment, *held.mutable_assignment());
  EXPECT_EQ(held.assignment().sampling().logprobs(), 1u);
  held.add_token_ids(12);
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

TEST(HeldRequest, UnexpectedFieldsOfAnOriginAreIgnored) {
  v1::HeldRequest held = Held(Client(true), {}, {});
  v1::GenerateRequest origin;
  ASSERT_TRUE(origin.ParseFromString(held.assignment().origin()));
  origin.mutable_token_ids()->add_ids(1);
  origin.set_parent_id("p");
  origin.set_resume_from_index(3);
  held.mutable_assignment()->set_origin(origin.SerializeAsString());
  const auto state = FromHeld(held, RequestLimits());
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_THAT(state->request.prompt, ElementsAre(5, 6, 7));
  EXPECT_EQ(state->request.parent_id, "");
  EXPECT_FALSE(state->request.resume_from.has_value());
  origin.mutable_ttft_objective()->set_seconds(INT64_MAX);
  held.mutable_assignment()->set_origin(origin.SerializeAsString());
  EXPECT_TRUE(absl::IsInvalidArgument(FromHeld(held, RequestLimits()).status()));
}

TEST(HeldRequest, AnEndIsKeptAndAFullRequestHasEnded) {
  v1::HeldRequest held = Held(Client(false), {}, {1, 2});
  held.set_ended(v1::FINISH_REASON_STOP);
  EXPECT_EQ(FromHeld(held, RequestLimits())->ended, FinishReason::kStop);
  EXPECT_EQ(FromHeld(Held(Client(false), {}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), RequestLimits())->ended,
            FinishReason::kLength);
}

TEST(HeldRequest, InconsistentRequestsAreRefused) {
  const auto expect = [](auto change, const std::string& part) {
    v1::HeldRequest held = Held(Client(true), {100}, {101});
    change(held);
    const auto state = FromHeld(held, RequestLimits());
    EXPECT_TRUE(absl::IsInvalidArgument(state.status())) << part;
    EXPECT_THAT(std::string(state.status().message()), HasSubstr(part));
  };
  expect([](auto& h) { h.mutable_assignment()->set_origin("\xff"); }, "cannot be parsed");
  expect([](auto& h) { h.mutable_assignment()->set_first_index(4); }, "first_index 4");
  expect([](auto& h) { h.mutable_assignment()->set_prompt_length(9); }, "prompt_length 9");
  expect([](auto& h) { h.mutable_assignment()->clear_prompt_token_ids(); },
         "0 earlier_token_ids do not match first_index 1");
  expect(
      [](auto& h) {
        for (int i = 0; i < 9; ++i) h.add_token_ids(1);
      },
      "11 tokens, more than its max_new_tokens, 10");
  expect([](auto& h) { h.mutable_assignment()->clear_origin(); }, "max_new_tokens is 0");
  expect([](auto& h) { h.mutable_assignment()->set_handle(UINT64_MAX); }, "its handle");
}

TEST(HeldRequest, DamagedMessagesAreRefusedOrConsistent) {
  Rng rng(5);
  const std::string good = Held(Client(true), {100, 101}, {102, 103}).SerializeAsString();
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (uint64_t n = 1 + rng.Below(4); n > 0; --n) {
      bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Below(256));
    }
    v1::HeldRequest held;
    if (!held.ParseFromString(bytes)) continue;
    const auto state = FromHeld(held, RequestLimits());
    if (!state.ok()) continue;
    ++taken;
    ASSERT_LE(state->tokens.size(), state->request.max_new_tokens);
    ASSERT_LE(state->first_index, state->tokens.size());
    ASSERT_TRUE(state->request.resumable);
  }
  EXPECT_GT(taken, 100) << "else the damage was too great to prove anything";
}

}  // namespace
}  // namespace bfio::router
