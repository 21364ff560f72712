// The requests that the router has accepted, and their form for the scheduler.
#include "router/requests/request_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/requests/check_request.h"
#include "router/requests/text_ratio.h"

namespace bfio::router {
namespace {

// --- the request in the scheduler's form ---

class SpecTest : public ::testing::Test {
 protected:
  RequestRecord& Record(ClientRequest request) {
    request.request_id = absl::StrCat(++last_);
    request.prompt_tokens = 10;
    request.max_new_tokens = 50;
    return *table_.Add(last_, request, nullptr, 1, absl::UnixEpoch());
  }
  RequestTable table_;
  core::RequestId last_ = 0;
};

TEST_F(SpecTest, DeliveredTokensAreGeneratedOnes) {
  RequestRecord& record = Record({.predicted_output_tokens = 20});
  EXPECT_EQ(record.Spec(7).tenant, 1u);
  EXPECT_EQ(record.Spec(7).generated_tokens, 0);
  record.delivered = 5;
  const core::RequestSpec spec = record.Spec(7);
  EXPECT_EQ(spec.generated_tokens, 5);
  EXPECT_EQ(spec.prefill_tokens, 15);
  EXPECT_EQ(spec.max_new_tokens, 45);
  EXPECT_EQ(spec.predicted_output_tokens, 15);
  EXPECT_EQ(spec.seniority, 0);
  record.senior_step = 4;
  EXPECT_EQ(record.Spec(7).seniority, 3) << "its age is kept wherever it waits";
  record.wait_steps = 9;
  EXPECT_EQ(record.MakeAssignment(false).waited_steps, 12);
}

TEST_F(SpecTest, WhatHoldsForAPromptHoldsOrEndsWithTheFirstToken) {
  ClientRequest request;
  request.passed.kv_from_elsewhere = true;
  request.prompt = std::vector<uint32_t>(70, 3);
  request.prefix = core::NamePrefixBlocks(request.prompt);
  request.ttft_objective = absl::Milliseconds(1500);
  ASSERT_NE(request.prefix, nullptr);
  RequestRecord& record = Record(request);
  EXPECT_EQ(record.Spec(1).prefill_tokens, 10);
  EXPECT_EQ(record.Spec(1).tokens_to_compute(), 1) << "KV comes from elsewhere";
  EXPECT_EQ(record.Spec(1).prefix, request.prefix);
  EXPECT_EQ(record.Spec(7).ttft_objective_s, 1.5);
  record.delivered = 2;
  record.first_token = absl::UnixEpoch() + absl::Seconds(1);
  EXPECT_EQ(record.Spec(1).tokens_to_compute(), 12) << "the rank that held its KV is gone";
  EXPECT_EQ(record.Spec(1).prefix, request.prefix) << "placed again, it begins with the same prompt";
  EXPECT_EQ(record.Spec(7).ttft_objective_s, std::nullopt);
}

TEST(RequestTable, WithoutASeedTheNameIsTheSeed) {
  RequestTable table;
  const auto seed_of = [&](core::RequestId id, const ClientRequest& request) {
    const uint64_t seed = table.Add(id, request, nullptr, 0, absl::UnixEpoch())->MakeAssignment(false).seed;
    table.Erase(id);
    return seed;
  };
  ClientRequest request = {.request_id = "r"};
  const uint64_t seed = seed_of(1, request);
  EXPECT_EQ(seed_of(2, request), seed) << "whatever its number in this run of the router";
  EXPECT_NE(seed_of(3, {.request_id = "s"}), seed);
  request.resumable = true;
  EXPECT_EQ(seed_of(4, request), seed);
  request.sampling.seed = 5;
  EXPECT_EQ(seed_of(5, request), 5u);
}

// --- checks of a request ---

absl::Status Check(const ClientRequest& request) {
  return CheckRequest(request, RequestLimits());
}

TEST(CheckRequest, AcceptsValuesAtTheirLimits) {
  ClientRequest request = {.request_id = std::string(128, 'x'), .tenant = std::string(128, 'x')};
  request.prompt_tokens = 131072;
  request.max_new_tokens = 65536;
  request.priority = -100;
  request.stop_token_ids.resize(64);
  request.parent_id = std::string(128, 'p');
  request.stage = 1 << 20;
  request.remaining_tokens = 1 << 24;
  request.parent_timeout = absl::Hours(24);
  for (const absl::Duration objective : {absl::Hours(1), absl::Nanoseconds(1)}) {
    request.ttft_objective = objective;
    EXPECT_TRUE(Check(request).ok());
  }
  request = {.prompt_tokens = 10, .max_new_tokens = 5, .resume_from = 2, .received = {1, 2}};
  EXPECT_TRUE(Check(request).ok());
  request = {.resume_from = 7};
  EXPECT_TRUE(IsBareResume(request));
  EXPECT_TRUE(Check(request).ok());
}

TEST(CheckRequest, NamesFieldValueAndLimit) {
  using Change = std::function<void(ClientRequest&)>;
  const std::string long_name(129, 'x');
  const struct {
    Change change;
    const char* message;
  } cases[] = {
      {[](auto& r) { r.max_new_tokens = 65537; }, "max_new_tokens is 65537; must be within 1..65536"},
      {[&](auto& r) { r.request_id = long_name; }, "request_id's length is 129; must be at most 128 bytes"},
      {[&](auto& r) { r.tenant = long_name; }, "tenant's length is 129; must be at most 128 bytes"},
      {[&](auto& r) { r.parent_id = long_name; }, "parent_id's length is 129; must be at most 128 bytes"},
      {[&](auto& r) { r.resume_from = 0, r.resume_token = long_name; },
       "resume_token's length is 129; must be at most 128 bytes"},
      {[](auto& r) { r.prompt_tokens = 131073; }, "prompt_length is 131073; must be within 1..131072"},
      {[](auto& r) { r.prompt_tokens = 131073, r.prompt.resize(131073); },
       "the number of token_ids is 131073; must be within 1..131072"},
      {[](auto& r) { r.stop_token_ids.resize(65); },
       "the number of stop_token_ids is 65; must be at most 64"},
      {[](auto& r) { r.predicted_output_tokens = 0; },
       "predicted_output_tokens is 0; must be at least 1, or unset"},
      {[](auto& r) { r.sampling.top_k = 0; }, "sampling.top_k is 0; must be at least 1"},
      {[](auto& r) { r.sampling.temperature = std::nanf(""); }, ""},
      {[](auto& r) { r.sampling.top_p = std::nanf(""); }, ""},
      {[](auto& r) { r.priority = INT32_MIN; }, ""},
      {[](auto& r) { r.parent_id = "p", r.stage = (1 << 20) + 1; },
       "stage is 1048577; must be at most 1048576"},
      {[](auto& r) { r.parent_id = "p", r.remaining_tokens = (1 << 24) + 1; },
       "remaining_tokens is 16777217; must be at most 16777216"},
      {[](auto& r) { r.stage = 0; }, "stage, remaining_tokens and parent_timeout need parent_id"},
      {[](auto& r) { r.parent_timeout = absl::Hours(1); },
       "stage, remaining_tokens and parent_timeout need parent_id"},
      {[](auto& r) { r.parent_id = "p", r.parent_timeout = absl::Hours(24) + absl::Seconds(1); },
       "parent_timeout is 24h1s; must be above 0 and at most 24 h"},
      {[](auto& r) { r.ttft_objective = absl::Hours(1) + absl::Nanoseconds(1); },
       "ttft_objective is 1h0.000000001s; must be above 0 and at most 1 h"},
      {[](auto& r) { r.ttft_objective = absl::ZeroDuration(); },
       "ttft_objective is 0; must be above 0 and at most 1 h"},
      {[](auto& r) { r = {.resume_from = 65537}; }, "resume_from_index is 65537; must be at most 65536"},
      {[](auto& r) { r = {.resume_from = 0, .received = {1}}; },
       "received_token_ids needs resume_from_index and a prompt"},
      {[](auto& r) { r.resume_from = 2, r.received = {1}; },
       "the number of received_token_ids is 1; must be within resume_from_index..max_new_tokens, 2..5"},
      {[](auto& r) { r.resume_from = 6; }, "resume_from_index is 6; must be at most max_new_tokens, 5"},
  };
  for (const auto& one : cases) {
    ClientRequest request = {.prompt_tokens = 10, .max_new_tokens = 5};
    EXPECT_TRUE(Check(request).ok());
    one.change(request);
    const absl::Status status = Check(request);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << one.message;
    if (one.message[0] != '\0') {
      EXPECT_EQ(status.message(), one.message);
    }
  }
}

// --- tokens of a text ---

// Bytes per token, from texts that were placed and prompts that a server has counted.

class PromptCountTest : public ::testing::Test {
 protected:
  // Texts of 300 bytes end, and the server counts this many prompts of so many tokens in all.
  void Window(int64_t ended, double prompts, double tokens) {
    for (int64_t i = 0; i < ended; ++i) count_.OnEnd(300);
    count_.OnCount(prompts_ += prompts, tokens_ += tokens);
  }
  double ratio() const { return ratio_->bytes_per_token(); }

  const std::shared_ptr<TextRatio> ratio_ = std::make_shared<TextRatio>();
  PromptCount count_{ratio_};
  double prompts_ = 0, tokens_ = 0;
};

TEST_F(PromptCountTest, ASampleIsOfManyPrompts) {
  Window(0, 1000, 1e6);
  EXPECT_EQ(ratio(), TextRatio::kUsual);
  for (int i = 0; i < 3; ++i) {
    count_.OnEnd(0);
    Window(16, 16, 1600);
  }
  EXPECT_EQ(ratio(), TextRatio::kUsual);
  // The server has not counted the last one yet.
  Window(16, 15, 1500);
  EXPECT_NEAR(ratio(), 3, 1e-9);
}

TEST_F(PromptCountTest, CountsWithOthersPromptsAndRestartsAreNoSample) {
  Window(64, 64, 6400);
  EXPECT_EQ(ratio(), TextRatio::kUsual) << "what it has counted before is not known";
  Window(64, 128, 1);
  prompts_ = tokens_ = 0;
  Window(64, 10, 1000);
  Window(64, 64, 0);
  for (int i = 0; i < 4; ++i) Window(64, 0, 0);
  EXPECT_EQ(ratio(), TextRatio::kUsual);
  for (int i = 0; i < 3; ++i) Window(64, 0, 0);
  Window(64, 256, 25600);
  EXPECT_NEAR(ratio(), 3, 1e-9) << "the server was late";
  ratio_->Add(4);
  Window(64, 64, 6400);
  EXPECT_NEAR(ratio(), 3, 1e-9);
}

TEST_F(PromptCountTest, TheMedianStaysWithinBounds) {
  Window(0, 0, 0);
  for (int i = 0; i < 5; ++i) Window(64, 64, 6400);
  for (int i = 0; i < 4; ++i) Window(64, 64, 64);
  EXPECT_NEAR(ratio(), 3, 1e-9);
  Window(64, 64, 64);
  EXPECT_EQ(ratio(), TextRatio::kMost);
  for (int i = 0; i < 5; ++i) Window(64, 64, 1e9);
  EXPECT_EQ(ratio(), TextRatio::kLeast);
}

}  // namespace
}  // namespace bfio::router
