#include "router/worker_link/held_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "router/requests/replay_budget.h"
#include "router/requests/request_table.h"

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::GenerateRequest Client(bool ids) {
  v1::GenerateRequest request;
  request.set_request_id("r1");
  if (ids) {
    for (const uint32_t id : {5, 6, 7}) request.mutable_token_ids()->add_ids(id);
  } else {
    request.set_prompt_length(3);
  }
  request.set_max_new_tokens(10);
  request.add_stop_token_ids(99);
  request.mutable_sampling()->set_temperature(0.5f);
  request.set_tenant("acme");
  request.set_priority(3);
  request.set_resumable(true);
  request.set_resume_token("secret");
  return request;
}

// What a worker hands back of a request that has given `before` tokens in earlier placements, and `here` in
// this.
v1::HeldRequest Held(const v1::GenerateRequest& client, std::vector<uint32_t> before,
                     const std::vector<uint32_t>& here) {
  RequestTable table;
  RequestRecord* record = table.Add(42, client, nullptr, absl::UnixEpoch());
  record->delivered = static_cast<uint32_t>(before.size());
  record->history = std::move(before);
  v1::HeldRequest held;
  *held.mutable_assignment() = record->Assignment(absl::UnixEpoch());
  held.mutable_token_ids()->Add(here.begin(), here.end());
  return held;
}

TEST(HeldRequest, ComesBackAsTheClientSentIt) {
  for (const bool ids : {true, false}) {
    const v1::GenerateRequest client = Client(ids);
    const auto state = FromHeld(Held(client, {100, 101}, {102}), RequestLimits());
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->handle, 42u);
    EXPECT_EQ(state->first_index, 2u);
    EXPECT_THAT(state->tokens, ElementsAre(100, 101, 102));
    EXPECT_FALSE(state->ended.has_value());
    // All of it, and the seed that was chosen for it.
    v1::GenerateRequest request = state->request;
    EXPECT_EQ(request.sampling().seed(), SeedOfName("r1"));
    request.mutable_sampling()->clear_seed();
    EXPECT_EQ(request.SerializeAsString(), client.SerializeAsString());
  }
}

TEST(HeldRequest, AnEndIsKeptAndAFullRequestHasEnded) {
  v1::HeldRequest held = Held(Client(false), {}, {1, 2});
  held.set_ended(v1::FINISH_REASON_STOP);
  EXPECT_EQ(FromHeld(held, RequestLimits())->ended, v1::FINISH_REASON_STOP);
  EXPECT_EQ(FromHeld(Held(Client(false), {}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), RequestLimits())->ended,
            v1::FINISH_REASON_LENGTH);
}

TEST(HeldRequest, WhatContradictsItselfIsRefused) {
  const auto expect = [](auto change, const std::string& part) {
    v1::HeldRequest held = Held(Client(true), {100}, {101});
    change(held);
    const auto state = FromHeld(held, RequestLimits());
    EXPECT_TRUE(absl::IsInvalidArgument(state.status())) << part;
    EXPECT_THAT(std::string(state.status().message()), HasSubstr(part));
  };
  expect([](auto& h) { h.mutable_assignment()->set_origin("\xff"); }, "cannot be read");
  expect([](auto& h) { h.mutable_assignment()->set_first_index(4); }, "first_index 4");
  expect([](auto& h) { h.mutable_assignment()->set_prompt_length(9); }, "prompt_length 9");
  expect([](auto& h) { h.mutable_assignment()->clear_prompt_token_ids(); },
         "0 earlier tokens before index 1");
  expect(
      [](auto& h) {
        for (int i = 0; i < 9; ++i) h.add_token_ids(1);
      },
      "11 tokens of at most 10");
  expect([](auto& h) { h.mutable_assignment()->clear_origin(); }, "max_new_tokens is 0");
  expect([](auto& h) { h.mutable_assignment()->set_handle(UINT64_MAX); }, "its handle");
}

TEST(HeldRequest, DamageIsNeverMoreThanARefusal) {
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
    ASSERT_LE(state->tokens.size(), state->request.max_new_tokens());
    ASSERT_LE(state->first_index, state->tokens.size());
    ASSERT_TRUE(state->request.resumable());
  }
  EXPECT_GT(taken, 100) << "else the damage was too great to prove anything";
}

TEST(MayResume, AsksForTenantAndSecret) {
  const v1::GenerateRequest client = Client(false);
  v1::GenerateRequest resume = client;
  EXPECT_TRUE(MayResume(client, resume));
  resume.set_tenant("acm");
  EXPECT_FALSE(MayResume(client, resume));
  resume = client;
  resume.set_resume_token("Secret");
  EXPECT_FALSE(MayResume(client, resume));
  resume.clear_resume_token();
  EXPECT_FALSE(MayResume(client, resume));
}

TEST(MayAbort, AsksForTheSecretAndForTheTenantOfWhoHasOne) {
  const v1::GenerateRequest client = Client(false);
  v1::AbortRequest abort;
  EXPECT_FALSE(MayAbort(client, abort, std::nullopt)) << "its secret is not repeated";
  abort.set_resume_token(client.resume_token());
  EXPECT_TRUE(MayAbort(client, abort, std::nullopt)) << "callers say their own tenants here";
  EXPECT_TRUE(MayAbort(client, abort, client.tenant()));
  EXPECT_FALSE(MayAbort(client, abort, "acm"));
  abort.set_resume_token("Secret");
  EXPECT_FALSE(MayAbort(client, abort, client.tenant()));
  EXPECT_FALSE(MayAbort(v1::GenerateRequest(), abort, std::nullopt)) << "it was sent without one";
}

TEST(ReplayBudget, BoundsTheSumAndEachRequest) {
  ReplayBudget budget(100, 60);
  using Outcome = ReplayBudget::Outcome;
  int64_t a = 0, b = 0;
  EXPECT_EQ(budget.Charge(a, 60), Outcome::kKept);
  EXPECT_EQ(budget.Charge(a, 1), Outcome::kRequestTooLarge);
  EXPECT_EQ(budget.Charge(b, 41), Outcome::kFull);
  EXPECT_EQ(budget.Charge(b, 40), Outcome::kKept);
  budget.Release(a);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(budget.used(), 40);
  budget.Release(a);
  EXPECT_EQ(budget.used(), 40);
}

TEST(ReplayBudget, TheSumIsThatOfTheParts) {
  Rng rng(1);
  ReplayBudget budget(1000, 300);
  std::vector<int64_t> held(8, 0);
  for (int i = 0; i < 10'000; ++i) {
    int64_t& one = held[rng.Below(held.size())];
    if (rng.Below(4) == 0) {
      budget.Release(one);
    } else {
      const auto bytes = static_cast<int64_t>(rng.Below(200));
      const int64_t before = one;
      const bool kept = budget.Charge(one, bytes) == ReplayBudget::Outcome::kKept;
      ASSERT_EQ(one, kept ? before + bytes : before);
    }
    int64_t sum = 0;
    for (const int64_t bytes : held) {
      ASSERT_LE(bytes, 300);
      sum += bytes;
    }
    ASSERT_EQ(budget.used(), sum);
    ASSERT_LE(sum, 1000);
  }
}

}  // namespace
}  // namespace bfio::router
