#include "router/worker_link/from_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace bfio::router {
namespace {

using ::testing::ElementsAre;

v1::Hello GoodHello() {
  v1::Hello hello;
  hello.set_worker_id("w0");
  hello.set_group("blue");
  hello.set_model(std::string(64, 'a'));
  hello.set_slots(8);
  hello.set_kv_tokens(1000);
  hello.set_max_sequence_tokens(500);
  hello.set_engine("sim");
  hello.set_barrier("star");
  hello.set_communicator_offer("host:1");
  hello.set_version("1.2.3");
  hello.set_router_instance(7);
  hello.set_worker_instance(8);
  hello.set_stream(9);
  hello.set_service_s(0.5);
  hello.set_steps_alone(true);
  hello.set_logprobs(true);
  v1::ActiveRequest& active = *hello.add_active();
  active.set_handle(42);
  active.set_kv_tokens(11);
  active.set_generated_tokens(3);
  return hello;
}

absl::StatusOr<StepReport> Converted(const v1::StepReport& report) {
  return ToStepReport(report);
}

TEST(ToHello, KeepsAllFields) {
  const auto hello = ToHello(GoodHello());
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->worker_id, "w0");
  EXPECT_EQ(hello->group, "blue");
  EXPECT_EQ(hello->model, std::string(64, 'a'));
  EXPECT_EQ(hello->slots, 8);
  EXPECT_EQ(hello->kv_tokens, 1000);
  EXPECT_EQ(hello->max_sequence_tokens, 500);
  EXPECT_EQ(hello->engine, "sim");
  EXPECT_EQ(hello->barrier, "star");
  EXPECT_EQ(hello->worker_instance, 8u);
  EXPECT_EQ(hello->stream, 9u);
  EXPECT_EQ(hello->communicator_offer, "host:1");
  EXPECT_EQ(hello->version, "1.2.3");
  EXPECT_EQ(hello->router_instance, 7u);
  EXPECT_EQ(hello->service_s, 0.5);
  EXPECT_TRUE(hello->steps_alone);
  EXPECT_TRUE(hello->logprobs);
  ASSERT_EQ(hello->active.size(), 1u);
  EXPECT_EQ(hello->active[0].id, 42u);
  EXPECT_EQ(hello->active[0].kv_tokens, 11);
  EXPECT_EQ(hello->active[0].generated_tokens, 3u);
}

TEST(ToHello, NamesFieldValueAndLimit) {
  const auto refused = [](auto change) {
    v1::Hello hello = GoodHello();
    change(hello);
    const absl::Status status = ToHello(hello).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refused([](auto& h) { h.clear_worker_id(); }),
            "worker_id's length is 0; must be within 1..256 bytes");
  EXPECT_EQ(refused([](auto& h) { h.set_group(std::string(65, 'g')); }),
            "group's length is 65; must be at most 64 bytes");
  EXPECT_EQ(refused([](auto& h) { h.set_barrier(std::string(65, 'b')); }),
            "barrier's length is 65; must be at most 64 bytes");
  for (const std::string& model : {std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'g')}) {
    EXPECT_EQ(refused([&](auto& h) { h.set_model(model); }),
              "model must be 64 lower-case hexadecimal digits, or empty");
  }
  EXPECT_EQ(refused([](auto& h) { h.set_slots(65537); }), "slots is 65537; must be within 1..65536");
  EXPECT_EQ(refused([](auto& h) { h.clear_kv_tokens(); }), "kv_tokens is 0; must be within 1..1099511627776");
  EXPECT_EQ(refused([](auto& h) { h.clear_max_sequence_tokens(); }),
            "max_sequence_tokens is 0; must be at least 1");
  EXPECT_EQ(refused([](auto& h) { h.set_service_s(std::nan("")); }),
            "service_s is nan; it must be 0 or within 1e-9..1e9");
}

TEST(ToHello, LengthsBeyondInt64AreClamped) {
  v1::Hello hello = GoodHello();
  hello.clear_model();
  EXPECT_EQ(ToHello(hello)->model, "") << "of a worker that does not tell";
  hello.set_max_sequence_tokens(UINT64_MAX);
  EXPECT_EQ(ToHello(hello)->max_sequence_tokens, std::numeric_limits<int64_t>::max());
}

TEST(ToEpochReady, KeepsAllFields) {
  v1::EpochReady ready;
  ready.set_epoch(4);
  ready.set_error("no");
  ready.set_communicator_offer("next");
  ready.add_active()->set_handle(9);
  ready.add_missing_ranks(2);
  const EpochReady converted = ToEpochReady(ready);
  EXPECT_EQ(converted.epoch, 4u);
  EXPECT_EQ(converted.error, "no");
  EXPECT_EQ(converted.communicator_offer, "next");
  ASSERT_EQ(converted.active.size(), 1u);
  EXPECT_EQ(converted.active[0].id, 9u);
  EXPECT_THAT(converted.missing_ranks, ElementsAre(2));
}

TEST(ToStepReport, TimesAreTakenFromTheMessageAndNeverNegative) {
  v1::StepReport report;
  report.set_local_ns(5);
  report.set_barrier_wait_ns(UINT64_MAX);
  report.set_group_max_local_ns(7);
  const auto converted = Converted(report);
  ASSERT_TRUE(converted.ok());
  EXPECT_EQ(converted->local, absl::Nanoseconds(5));
  EXPECT_EQ(converted->barrier_wait, absl::Nanoseconds(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(converted->group_max_local, absl::Nanoseconds(7));
  EXPECT_FALSE(converted->gap.has_value());
  report.set_gap_ns(0);
  EXPECT_EQ(Converted(report)->gap, absl::ZeroDuration());
}

TEST(ToStepReport, SeveralTokensOfARequestStayTogether) {
  v1::StepReport report;
  for (const uint64_t handle : {5, 6}) report.add_handles(handle);
  for (const uint32_t count : {2, 1}) report.add_token_counts(count);
  for (const uint32_t token : {100, 101, 102}) report.add_token_ids(token);
  v1::Finished& finished = *report.add_finished();
  finished.set_handle(6);
  finished.set_reason(v1::FINISH_REASON_STOP);
  const auto converted = Converted(report);
  ASSERT_TRUE(converted.ok());
  ASSERT_EQ(converted->tokens.size(), 2u);
  EXPECT_EQ(converted->tokens[0].id, 5u);
  EXPECT_EQ(converted->tokens[0].count, 2u);
  EXPECT_EQ(converted->tokens[1].count, 1u);
  EXPECT_THAT(converted->token_ids, ElementsAre(100, 101, 102));
  ASSERT_EQ(converted->finished.size(), 1u);
  EXPECT_EQ(converted->finished[0].reason, FinishReason::kStop);
}

TEST(ToStepReport, TakesOneTokenPerHandleWhenCountsAreLeftOut) {
  v1::StepReport report;
  report.set_step(3);
  report.set_applied_plan(2);
  report.set_load_tokens(77);
  report.add_handles(5);
  report.add_token_ids(100);
  report.add_finished()->set_handle(5);
  const auto converted = Converted(report);
  ASSERT_TRUE(converted.ok());
  EXPECT_EQ(converted->step, 3);
  EXPECT_EQ(converted->applied_plan, 2);
  EXPECT_EQ(converted->load_tokens, 77);
  ASSERT_EQ(converted->tokens.size(), 1u);
  EXPECT_EQ(converted->tokens[0].count, 1u);
  ASSERT_EQ(converted->finished.size(), 1u);
  EXPECT_EQ(converted->finished[0].id, 5u);
  EXPECT_EQ(converted->finished[0].reason, FinishReason::kLength);
  EXPECT_EQ(converted->prefill, std::nullopt);
  report.set_token_budget(512);
  report.set_prefill_tokens(17);
  v1::PendingPrompt& prompt = *report.add_pending_prompts();
  prompt.set_handle(8);
  prompt.set_tokens(30);
  EXPECT_EQ(Converted(report)->prefill, (core::PrefillReport{512, {{8, 30}}}));
  EXPECT_EQ(Converted(report)->prefill_tokens, 17);
  prompt.set_tokens(0);
  EXPECT_EQ(Converted(report).status().message(), "a pending prompt has no tokens left to compute");
  prompt.set_tokens(1);
  report.set_prefill_tokens(uint64_t{1} << 41);
  EXPECT_EQ(Converted(report).status().message(),
            "step, applied_plan, load_tokens or prefill_tokens is out of range");
}

TEST(ToBatchCost, RefusesInvalidCosts) {
  v1::BatchCost cost;
  cost.set_c_s(0.01);
  cost.set_a_s_per_token(2e-5);
  cost.set_b0_tokens(64);
  cost.set_k1_s_per_pair(2e-9);
  cost.set_k2_s_per_token(1e-8);
  const auto good = ToBatchCost(cost);
  ASSERT_TRUE(good.has_value());
  EXPECT_DOUBLE_EQ(good->Seconds({.tokens = 164, .prefill_pairs = 1e6, .decode_context = 1e5}),
                   0.01 + 100 * 2e-5 + 2e-3 + 1e-3);
  for (const double bad : {-1.0, 0.0, std::nan(""), 1e9}) {
    v1::BatchCost other = cost;
    other.set_a_s_per_token(bad);
    EXPECT_FALSE(ToBatchCost(other).has_value()) << bad;
  }
  for (const double bad : {-1.0, std::nan(""), 1e9}) {
    v1::BatchCost other = cost;
    other.set_k1_s_per_pair(bad);
    EXPECT_FALSE(ToBatchCost(other).has_value()) << bad;
  }
  // Older workers do not report it.
  v1::BatchCost old = cost;
  old.clear_k1_s_per_pair();
  ASSERT_TRUE(ToBatchCost(old).has_value());
  EXPECT_EQ(ToBatchCost(old)->k1_s_per_pair, 0);
  cost.set_c_s(-1);
  EXPECT_FALSE(ToBatchCost(cost).has_value());
}

TEST(ToStepReport, LogprobsAreThoseOfARequestsTokens) {
  v1::StepReport report;
  for (const uint64_t handle : {7, 8, 9}) report.add_handles(handle);
  for (const uint32_t token : {70, 80, 90}) report.add_token_ids(token);
  v1::RequestLogprobs& one = *report.add_logprobs();
  one.set_index(1);
  one.mutable_logprobs()->add_token_logprobs(-1);
  one.mutable_logprobs()->add_top_token_ids(5);
  one.mutable_logprobs()->add_top_logprobs(-0.5);
  const auto converted = Converted(report);
  ASSERT_TRUE(converted.ok()) << converted.status();
  ASSERT_EQ(converted->logprobs.size(), 1u);
  EXPECT_EQ(converted->logprobs[0].index, 1u);
  EXPECT_THAT(converted->logprobs[0].logprobs.tokens, ElementsAre(-1));
  EXPECT_THAT(converted->logprobs[0].logprobs.top, ElementsAre(TopToken{5, -0.5}));
  const auto refused = [&](auto change) {
    v1::StepReport bad = report;
    change(bad);
    return absl::IsInvalidArgument(Converted(bad).status());
  };
  EXPECT_TRUE(refused([](v1::StepReport& bad) { bad.mutable_logprobs(0)->set_index(3); }));
  EXPECT_TRUE(refused([](v1::StepReport& bad) { *bad.add_logprobs() = bad.logprobs(0); })) << "named twice";
  EXPECT_TRUE(refused([](v1::StepReport& bad) {
    bad.mutable_logprobs(0)->mutable_logprobs()->add_token_logprobs(-2);
  })) << "more than tokens";
  EXPECT_TRUE(refused([](v1::StepReport& bad) { bad.mutable_logprobs(0)->clear_logprobs(); }));
  EXPECT_TRUE(refused([](v1::StepReport& bad) {
    bad.mutable_logprobs(0)->mutable_logprobs()->add_top_token_ids(6);
  })) << "an id without its value";
}

TEST(ToStepReport, RefusesCountsThatDoNotAddUp) {
  v1::StepReport report;
  report.add_handles(1);
  EXPECT_EQ(Converted(report).status().message(), "the report counts 1 tokens and carries 0");
  report.add_token_counts(2);
  report.add_token_counts(2);
  EXPECT_EQ(Converted(report).status().message(), "token_counts and handles differ in length");
  report.Clear();
  report.set_load_tokens(UINT64_MAX);
  EXPECT_EQ(Converted(report).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ToStepReport, ForwardsHintsThatAreProbabilities) {
  v1::StepReport report;
  for (uint64_t handle = 1; handle <= 5; ++handle) {
    report.add_handles(handle);
    report.add_token_ids(0);
  }
  report.add_completion_hints(0.0f);
  EXPECT_EQ(Converted(report).status().message(), "completion_hints and handles differ in length");
  for (const float hint : {0.25f, 1.5f, std::nanf(""), 1.0f}) report.add_completion_hints(hint);
  const auto converted = Converted(report);
  ASSERT_TRUE(converted.ok());
  ASSERT_EQ(converted->hints.size(), 3u);
  EXPECT_EQ(converted->hints[0].id, 1u);
  EXPECT_EQ(converted->hints[1].id, 2u);
  EXPECT_EQ(converted->hints[1].probability, 0.25);
  EXPECT_EQ(converted->hints[2].id, 5u);
  report.clear_completion_hints();
  EXPECT_TRUE(Converted(report)->hints.empty());
}

TEST(ToStepReport, RefusesARejectionWithoutAnErrorCode) {
  v1::StepReport report;
  report.add_rejected()->set_handle(7);
  EXPECT_EQ(Converted(report).status().message(), "a rejection carries code 0");
  report.mutable_rejected(0)->set_code(8);
  report.mutable_rejected(0)->set_message("no room");
  ASSERT_EQ(Converted(report)->rejected.size(), 1u);
  EXPECT_EQ(Converted(report)->rejected[0].id, 7u);
  EXPECT_EQ(Converted(report)->rejected[0].status, absl::ResourceExhaustedError("no room"));
  report.add_finished()->set_handle(7);
  EXPECT_EQ(Converted(report).status().message(), "a request is both rejected and finished");
}

TEST(ToStepReport, RefusesAPreemptedRequestThatHasAlsoEnded) {
  v1::StepReport report;
  report.add_preempted(7);
  report.add_preempted(8);
  ASSERT_TRUE(Converted(report).ok());
  EXPECT_THAT(Converted(report)->preempted, ElementsAre(7, 8));
  report.add_finished()->set_handle(8);
  EXPECT_EQ(Converted(report).status().message(), "a request is both preempted and finished or rejected");
}

}  // namespace
}  // namespace bfio::router
