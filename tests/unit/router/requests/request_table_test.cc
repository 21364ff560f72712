// The requests that the router has accepted, and their form for the scheduler.
#include "router/requests/request_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"

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

}  // namespace
}  // namespace bfio::router
