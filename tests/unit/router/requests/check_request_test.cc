#include "router/requests/check_request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

namespace bfio::router {
namespace {

ClientRequest Good() {
  return {.prompt_tokens = 10, .max_new_tokens = 5};
}

absl::Status Check(const ClientRequest& request) {
  return CheckRequest(request, RequestLimits());
}

TEST(CheckRequest, AcceptsLengthsAtTheirLimits) {
  ClientRequest request = Good();
  EXPECT_TRUE(Check(request).ok());
  request.prompt_tokens = 131072;
  request.max_new_tokens = 65536;
  request.priority = -100;
  request.stop_token_ids.resize(64);
  request.request_id = request.tenant = std::string(128, 'x');
  EXPECT_TRUE(Check(request).ok());
}

TEST(CheckRequest, NamesFieldValueAndLimit) {
  ClientRequest request = Good();
  request.max_new_tokens = 65537;
  EXPECT_EQ(Check(request).message(), "max_new_tokens is 65537; must be within 1..65536");
  request = Good();
  request.request_id = std::string(129, 'x');
  EXPECT_EQ(Check(request).message(), "request_id's length is 129; must be at most 128 bytes");
  request = Good();
  request.tenant = std::string(129, 'x');
  EXPECT_EQ(Check(request).message(), "tenant's length is 129; must be at most 128 bytes");
  request = Good();
  request.prompt_tokens = 131073;
  EXPECT_EQ(Check(request).message(), "prompt_length is 131073; must be within 1..131072");
  request.prompt.resize(131073);
  EXPECT_EQ(Check(request).message(), "the number of token_ids is 131073; must be within 1..131072");
  request = Good();
  request.stop_token_ids.resize(65);
  EXPECT_EQ(Check(request).message(), "the number of stop_token_ids is 65; must be at most 64");
  request = Good();
  request.predicted_output_tokens = 0;
  EXPECT_EQ(Check(request).message(), "predicted_output_tokens is 0; must be at least 1, or unset");
}

TEST(CheckRequest, RefusesNotANumber) {
  ClientRequest request = Good();
  request.sampling.temperature = std::nanf("");
  EXPECT_EQ(Check(request).code(), absl::StatusCode::kInvalidArgument);
  request = Good();
  request.sampling.top_p = std::nanf("");
  EXPECT_EQ(Check(request).code(), absl::StatusCode::kInvalidArgument);
  request = Good();
  request.sampling.top_k = 0;
  EXPECT_EQ(Check(request).message(), "sampling.top_k is 0; must be at least 1");
}

TEST(CheckRequest, RefusesTheSmallestPriorityWithoutOverflow) {
  ClientRequest request = Good();
  request.priority = INT32_MIN;
  EXPECT_EQ(Check(request).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckRequest, AgentsCallsAreBounded) {
  ClientRequest request = Good();
  request.parent_id = std::string(128, 'p');
  request.stage = 1 << 20;
  request.remaining_tokens = 1 << 24;
  EXPECT_TRUE(Check(request).ok());
  request.stage = (1 << 20) + 1;
  EXPECT_EQ(Check(request).message(), "stage is 1048577; must be at most 1048576");
  request.stage = 0;
  request.remaining_tokens = (1 << 24) + 1;
  EXPECT_EQ(Check(request).message(), "remaining_tokens is 16777217; must be at most 16777216");
  request = Good();
  request.parent_id = std::string(129, 'p');
  EXPECT_EQ(Check(request).message(), "parent_id's length is 129; must be at most 128 bytes");
  request = Good();
  request.stage = 0;
  EXPECT_EQ(Check(request).message(), "stage, remaining_tokens and parent_timeout need parent_id");
}

TEST(CheckRequest, ObjectivesAndTimesAreAboveZeroAndBounded) {
  ClientRequest request = Good();
  request.ttft_objective = absl::Hours(1);
  EXPECT_TRUE(Check(request).ok());
  request.ttft_objective = absl::Nanoseconds(1);
  EXPECT_TRUE(Check(request).ok());
  request.ttft_objective = absl::Hours(1) + absl::Nanoseconds(1);
  EXPECT_EQ(Check(request).message(), "ttft_objective is 1h0.000000001s; must be above 0 and at most 1 h");
  request.ttft_objective = absl::ZeroDuration();
  EXPECT_EQ(Check(request).message(), "ttft_objective is 0; must be above 0 and at most 1 h");
  request.ttft_objective.reset();
  request.parent_timeout = absl::Hours(24);
  EXPECT_EQ(Check(request).message(), "stage, remaining_tokens and parent_timeout need parent_id");
  request.parent_id = "p";
  EXPECT_TRUE(Check(request).ok());
  request.parent_timeout = absl::Hours(24) + absl::Seconds(1);
  EXPECT_EQ(Check(request).message(), "parent_timeout is 24h1s; must be above 0 and at most 24 h");
}

TEST(CheckRequest, ABareResumeNeedsNoPromptAndCarriesNoTokens) {
  ClientRequest resume = {.resume_from = 7};
  EXPECT_TRUE(IsBareResume(resume));
  EXPECT_TRUE(Check(resume).ok());
  resume.resume_from = 65537;
  EXPECT_EQ(Check(resume).message(), "resume_from_index is 65537; must be at most 65536");
  resume.resume_from = 0;
  resume.received = {1};
  EXPECT_EQ(Check(resume).message(), "received_token_ids needs resume_from_index and a prompt");
  resume.received.clear();
  resume.resume_token = std::string(129, 's');
  EXPECT_EQ(Check(resume).message(), "resume_token's length is 129; must be at most 128 bytes");
}

TEST(CheckRequest, AFullResumeMustBeConsistent) {
  ClientRequest resume = Good();
  resume.resume_from = 2;
  resume.received = {1, 2};
  EXPECT_TRUE(Check(resume).ok());
  resume.received = {1};
  EXPECT_EQ(Check(resume).message(),
            "the number of received_token_ids is 1; must be within resume_from_index..max_new_tokens, 2..5");
  resume.received.clear();
  resume.resume_from = 6;
  EXPECT_EQ(Check(resume).message(), "resume_from_index is 6; must be at most max_new_tokens, 5");
}

}  // namespace
}  // namespace bfio::router
