#include "router/worker_link/convert.h"

#include <gtest/gtest.h>

#include <cmath>

namespace bfio::router {
namespace {

v1::GenerateRequest Good() {
  v1::GenerateRequest request;
  request.set_prompt_length(10);
  request.set_max_new_tokens(5);
  return request;
}

absl::Status Check(const v1::GenerateRequest& request) {
  return CheckGenerate(request, RequestLimits());
}

TEST(CheckGenerate, AcceptsLengthsAtTheirLimits) {
  v1::GenerateRequest request = Good();
  EXPECT_TRUE(Check(request).ok());
  request.set_prompt_length(131072);
  request.set_max_new_tokens(65536);
  request.set_priority(-100);
  EXPECT_TRUE(Check(request).ok());
  for (int i = 0; i < 64; ++i) request.add_stop_token_ids(i);
  EXPECT_TRUE(Check(request).ok());
}

TEST(CheckGenerate, NamesFieldValueAndLimit) {
  v1::GenerateRequest request = Good();
  request.set_max_new_tokens(65537);
  EXPECT_EQ(Check(request).message(), "max_new_tokens is 65537; must be within 1..65536");
  request = Good();
  request.set_request_id(std::string(129, 'x'));
  EXPECT_EQ(Check(request).message(), "request_id's length is 129; must be at most 128 bytes");
  request = Good();
  request.mutable_token_ids();
  EXPECT_EQ(Check(request).message(), "the number of token_ids is 0; must be within 1..131072");
}

TEST(CheckGenerate, RefusesNotANumber) {
  v1::GenerateRequest request = Good();
  request.mutable_sampling()->set_temperature(std::nanf(""));
  EXPECT_EQ(Check(request).code(), absl::StatusCode::kInvalidArgument);
  request = Good();
  request.mutable_sampling()->set_top_p(std::nanf(""));
  EXPECT_EQ(Check(request).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckGenerate, RefusesTheSmallestPriorityWithoutOverflow) {
  v1::GenerateRequest request = Good();
  request.set_priority(INT32_MIN);
  EXPECT_EQ(Check(request).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckGenerate, AgentsCallsAreBounded) {
  v1::GenerateRequest request = Good();
  request.set_parent_id(std::string(128, 'p'));
  request.set_stage(1 << 20);
  request.set_remaining_tokens(1 << 24);
  EXPECT_TRUE(Check(request).ok());
  request.set_stage((1 << 20) + 1);
  EXPECT_EQ(Check(request).message(), "stage is 1048577; must be at most 1048576");
  request.set_stage(0);
  request.set_remaining_tokens((1 << 24) + 1);
  EXPECT_EQ(Check(request).message(), "remaining_tokens is 16777217; must be at most 16777216");
  request = Good();
  request.set_parent_id(std::string(129, 'p'));
  EXPECT_EQ(Check(request).message(), "parent_id's length is 129; must be at most 128 bytes");
  request = Good();
  request.set_stage(0);
  EXPECT_EQ(Check(request).message(), "stage, remaining_tokens and parent_timeout need parent_id");
}

TEST(CheckGenerate, ObjectivesAndTimesAreAboveZeroAndBounded) {
  v1::GenerateRequest request = Good();
  request.mutable_ttft_objective()->set_seconds(3600);
  request.mutable_tpot_objective()->set_nanos(1);
  EXPECT_TRUE(Check(request).ok());
  request.mutable_ttft_objective()->set_nanos(1);
  EXPECT_EQ(Check(request).message(), "ttft_objective is 3600 s and 1 ns; must be above 0 and at most 1 h");
  request.mutable_ttft_objective()->set_seconds(-1);
  EXPECT_EQ(Check(request).message(), "ttft_objective is -1 s and 1 ns; must be above 0 and at most 1 h");
  request.clear_ttft_objective();
  request.mutable_tpot_objective()->set_nanos(1'000'000'000);
  EXPECT_EQ(Check(request).message(),
            "tpot_objective is 0 s and 1000000000 ns; must be above 0 and at most 1 h");
  request.clear_tpot_objective();
  request.mutable_parent_timeout()->set_seconds(86'400);
  EXPECT_EQ(Check(request).message(), "stage, remaining_tokens and parent_timeout need parent_id");
  request.set_parent_id("p");
  EXPECT_TRUE(Check(request).ok());
  request.mutable_parent_timeout()->set_seconds(86'401);
  EXPECT_EQ(Check(request).message(), "parent_timeout is 86401 s and 0 ns; must be above 0 and at most 24 h");
}

TEST(ConvertReport, TakesOneTokenPerHandleWhenCountsAreLeftOut) {
  v1::StepReport report;
  report.set_step(3);
  report.set_applied_plan(2);
  report.set_load_tokens(77);
  report.add_handles(5);
  report.add_token_ids(100);
  report.add_finished()->set_handle(5);
  ReportView view;
  ASSERT_TRUE(ConvertReport(report, view).ok());
  EXPECT_EQ(view.core.step, 3);
  EXPECT_EQ(view.core.applied_plan, 2);
  EXPECT_EQ(view.core.load_tokens, 77);
  ASSERT_EQ(view.core.finished.size(), 1u);
  EXPECT_EQ(view.core.finished[0], 5u);
  EXPECT_EQ(view.core.prefill, std::nullopt);
  report.set_pending_prefill_tokens(0);
  report.set_token_budget(512);
  ASSERT_TRUE(ConvertReport(report, view).ok());
  EXPECT_EQ(view.core.prefill, (core::PrefillReport{0, 512}));
  report.set_pending_prefill_tokens(uint64_t{1} << 41);
  EXPECT_EQ(ConvertReport(report, view).message(),
            "step, applied_plan, load_tokens or pending_prefill_tokens is out of range");
}

TEST(ConvertReport, RefusesCountsThatDoNotAddUp) {
  ReportView view;
  v1::StepReport report;
  report.add_handles(1);
  EXPECT_EQ(ConvertReport(report, view).message(), "the report counts 1 tokens and carries 0");
  report.add_token_counts(2);
  report.add_token_counts(2);
  EXPECT_EQ(ConvertReport(report, view).message(), "token_counts and handles differ in length");
  report.Clear();
  report.set_load_tokens(UINT64_MAX);
  EXPECT_EQ(ConvertReport(report, view).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ConvertReport, PassesHintsOnAndLeavesOutWhatIsNoProbability) {
  v1::StepReport report;
  for (uint64_t handle = 1; handle <= 5; ++handle) {
    report.add_handles(handle);
    report.add_token_ids(0);
  }
  report.add_completion_hints(0.0f);
  ReportView view;
  EXPECT_EQ(ConvertReport(report, view).message(), "completion_hints and handles differ in length");
  for (const float hint : {0.25f, 1.5f, std::nanf(""), 1.0f}) report.add_completion_hints(hint);
  ASSERT_TRUE(ConvertReport(report, view).ok());
  ASSERT_EQ(view.core.hints.size(), 3u);
  EXPECT_EQ(view.core.hints[0].id, 1u);
  EXPECT_EQ(view.core.hints[1].id, 2u);
  EXPECT_EQ(view.core.hints[1].probability, 0.25);
  EXPECT_EQ(view.core.hints[2].id, 5u);
  report.clear_completion_hints();
  ASSERT_TRUE(ConvertReport(report, view).ok());
  EXPECT_TRUE(view.core.hints.empty());
}

TEST(ConvertReport, RefusesARejectionThatIsNone) {
  ReportView view;
  v1::StepReport report;
  report.add_rejected()->set_handle(7);
  EXPECT_EQ(ConvertReport(report, view).message(), "a rejection carries code 0");
  report.mutable_rejected(0)->set_code(8);
  EXPECT_TRUE(ConvertReport(report, view).ok());
  report.add_finished()->set_handle(7);
  EXPECT_EQ(ConvertReport(report, view).message(), "a request is both rejected and finished");
}

TEST(ConvertReport, RefusesAPreemptedRequestThatHasEndedToo) {
  ReportView view;
  v1::StepReport report;
  report.add_preempted(7);
  report.add_preempted(8);
  ASSERT_TRUE(ConvertReport(report, view).ok());
  EXPECT_EQ(view.core.preempted, (std::vector<core::RequestId>{7, 8}));
  report.add_finished()->set_handle(8);
  EXPECT_EQ(ConvertReport(report, view).message(), "a request is both preempted and finished or rejected");
}

}  // namespace
}  // namespace bfio::router
