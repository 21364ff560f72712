#include "router/worker_link/held_request.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "router/worker_link/to_wire.h"
#include "tests/testing/from_text.h"

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
