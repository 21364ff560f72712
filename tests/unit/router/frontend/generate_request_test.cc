#include "router/frontend/generate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::GenerateRequest Good() {
  v1::GenerateRequest request;
  request.set_prompt_length(10);
  request.set_max_new_tokens(5);
  return request;
}

std::string Refusal(const v1::GenerateRequest& request) {
  const absl::Status status = ToClientRequest(request, RequestLimits()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(ToClientRequest, KeepsEveryField) {
  v1::GenerateRequest request = Good();
  for (const uint32_t id : {5, 6, 7}) request.mutable_token_ids()->add_ids(id);
  request.set_request_id("r");
  request.set_tenant("acme");
  request.add_stop_token_ids(9);
  request.set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0.5f);
  request.mutable_sampling()->set_top_p(0.25f);
  request.mutable_sampling()->set_top_k(3);
  request.mutable_sampling()->set_seed(77);
  request.set_priority(-4);
  request.set_predicted_output_tokens(2);
  request.set_resumable(true);
  request.set_resume_token("secret");
  request.set_resume_from_index(1);
  request.add_received_token_ids(8);
  request.set_parent_id("p");
  request.set_stage(2);
  request.set_remaining_tokens(40);
  request.mutable_ttft_objective()->set_nanos(1);
  request.mutable_parent_timeout()->set_seconds(3);
  const auto converted = ToClientRequest(request, RequestLimits());
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->request_id, "r");
  EXPECT_EQ(converted->tenant, "acme");
  EXPECT_THAT(converted->prompt, ElementsAre(5, 6, 7));
  EXPECT_EQ(converted->prompt_tokens, 3u);
  EXPECT_EQ(converted->max_new_tokens, 5u);
  EXPECT_THAT(converted->stop_token_ids, ElementsAre(9));
  EXPECT_TRUE(converted->ignore_eos);
  EXPECT_EQ(converted->sampling.temperature, 0.5f);
  EXPECT_EQ(converted->sampling.top_p, 0.25f);
  EXPECT_EQ(converted->sampling.top_k, 3u);
  EXPECT_EQ(converted->sampling.seed, 77u);
  EXPECT_EQ(converted->priority, -4);
  EXPECT_EQ(converted->predicted_output_tokens, 2u);
  EXPECT_TRUE(converted->resumable);
  EXPECT_EQ(converted->resume_token, "secret");
  EXPECT_EQ(converted->resume_from, 1u);
  EXPECT_THAT(converted->received, ElementsAre(8));
  EXPECT_EQ(converted->parent_id, "p");
  EXPECT_EQ(converted->stage, 2u);
  EXPECT_EQ(converted->remaining_tokens, 40u);
  EXPECT_EQ(converted->ttft_objective, absl::Nanoseconds(1));
  EXPECT_EQ(converted->parent_timeout, absl::Seconds(3));
}

TEST(ToClientRequest, AbsentFieldsStayUnset) {
  const auto converted = ToClientRequest(Good(), RequestLimits());
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_THAT(converted->prompt, IsEmpty());
  EXPECT_EQ(converted->prompt_tokens, 10u);
  EXPECT_FALSE(converted->sampling.temperature || converted->sampling.top_p || converted->sampling.top_k ||
               converted->sampling.seed);
  EXPECT_FALSE(converted->predicted_output_tokens || converted->resume_from || converted->stage ||
               converted->remaining_tokens);
  EXPECT_FALSE(converted->ttft_objective || converted->parent_timeout);
}

TEST(ToClientRequest, ThePromptIsThereInOneForm) {
  v1::GenerateRequest request = Good();
  request.clear_prompt_length();
  EXPECT_EQ(Refusal(request), "prompt is missing; set token_ids or prompt_length");
  request.mutable_token_ids();
  EXPECT_EQ(Refusal(request), "the number of token_ids is 0; must be within 1..131072");
  request.set_prompt_length(0);
  EXPECT_EQ(Refusal(request), "prompt_length is 0; must be within 1..131072");
  request.set_resume_from_index(1);
  EXPECT_EQ(Refusal(request), "prompt_length is 0; must be within 1..131072") << "it is not left out";
}

TEST(ToClientRequest, MalformedDurationsAreShownAsTheyCame) {
  v1::GenerateRequest request = Good();
  request.mutable_ttft_objective()->set_seconds(3600);
  EXPECT_TRUE(ToClientRequest(request, RequestLimits()).ok());
  request.mutable_ttft_objective()->set_nanos(1);
  EXPECT_EQ(Refusal(request), "ttft_objective is 3600 s and 1 ns; must be above 0 and at most 1 h");
  request.mutable_ttft_objective()->set_seconds(-1);
  EXPECT_EQ(Refusal(request), "ttft_objective is -1 s and 1 ns; must be above 0 and at most 1 h");
  request.mutable_ttft_objective()->set_seconds(0);
  request.mutable_ttft_objective()->set_nanos(1'000'000'000);
  EXPECT_EQ(Refusal(request), "ttft_objective is 0 s and 1000000000 ns; must be above 0 and at most 1 h");
  request.clear_ttft_objective();
  request.set_parent_id("p");
  request.mutable_parent_timeout()->set_seconds(86'401);
  EXPECT_EQ(Refusal(request), "parent_timeout is 86401 s and 0 ns; must be above 0 and at most 24 h");
}

TEST(ToClientRequest, APromptOfIdsIsNamedWhereRequestsGoToEngines) {
  RequestLimits limits;
  v1::GenerateRequest request = Good();
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < 200; ++i) ids.push_back(7 * i);
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  EXPECT_EQ(ToClientRequest(request, limits)->prefix, nullptr);
  limits.name_prefixes = true;
  const auto converted = ToClientRequest(request, limits);
  ASSERT_TRUE(converted.ok() && converted->prefix != nullptr) << converted.status();
  EXPECT_EQ(*converted->prefix, *core::NamePrefixBlocks(ids));
  EXPECT_EQ(converted->prompt_bytes(), 4 * 200 + 8 * 3) << "of whole blocks";
  EXPECT_EQ(OutputOf(*converted, 1).prefix, converted->prefix) << "one copy for all outputs";
  EXPECT_EQ(ToClientRequest(Good(), limits)->prefix, nullptr) << "of a length nothing is known";
}

TEST(ToClientRequest, LimitsAreChecked) {
  v1::GenerateRequest request = Good();
  request.set_max_new_tokens(65537);
  EXPECT_EQ(Refusal(request), "max_new_tokens is 65537; must be within 1..65536");
}

TEST(ToClientRequest, ABareResumeKeepsOnlyItsRelevantFields) {
  v1::GenerateRequest request;
  request.set_request_id("r");
  request.set_tenant("acme");
  request.set_resumable(true);
  request.set_resume_token("secret");
  request.set_resume_from_index(3);
  request.set_max_new_tokens(1'000'000'000);
  request.add_stop_token_ids(1);
  request.set_priority(100'000);
  const auto converted = ToClientRequest(request, RequestLimits());
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->request_id, "r");
  EXPECT_EQ(converted->tenant, "acme");
  EXPECT_TRUE(converted->resumable);
  EXPECT_EQ(converted->resume_token, "secret");
  EXPECT_EQ(converted->resume_from, 3u);
  EXPECT_FALSE(converted->has_prompt());
  EXPECT_EQ(converted->max_new_tokens, 0u);
  EXPECT_THAT(converted->stop_token_ids, IsEmpty());
  EXPECT_EQ(converted->priority, 0);
}

TEST(ToClientRequest, TheServicesNamesAreCheckedToo) {
  EXPECT_EQ(ToClientRequest(Good(), "r", "acme", RequestLimits())->tenant, "acme");
  EXPECT_EQ(ToClientRequest(Good(), "r", std::string(129, 't'), RequestLimits()).status().message(),
            "tenant's length is 129; must be at most 128 bytes");
}

}  // namespace
}  // namespace bfio::router
