#include <cmath>
#include <cstdint>

#include "common/base/rng.h"
#include "common/workload/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/length_moments.h"

namespace bfio {
namespace {

using ::testing::HasSubstr;

TraceMoments Of(const Trace& trace, int64_t TraceRequest::*field) {
  return LengthMoments(trace, field);
}

TEST(ProfileTest, LengthsFollowThePublishedQuantiles) {
  const auto conversation = SampleProfile("conversation", 200000, 1);
  ASSERT_TRUE(conversation.ok());
  EXPECT_FALSE(conversation->has_arrivals);
  const TraceMoments prompt = Of(*conversation, &TraceRequest::prompt_tokens);
  EXPECT_NEAR(prompt.mean, 1154.7, 25);
  EXPECT_NEAR(prompt.median, 1020, 10);
  const TraceMoments output = Of(*conversation, &TraceRequest::output_tokens);
  EXPECT_NEAR(output.mean, 211.1, 4);
  EXPECT_NEAR(output.median, 129, 3);

  const auto code = SampleProfile("code", 200000, 1);
  ASSERT_TRUE(code.ok());
  const TraceMoments code_prompt = Of(*code, &TraceRequest::prompt_tokens);
  EXPECT_NEAR(code_prompt.mean, 2047.85, 20);
  EXPECT_NEAR(code_prompt.median, 1469, 20);
  EXPECT_NEAR(code_prompt.p95, 7303, 60);
  const TraceMoments code_output = Of(*code, &TraceRequest::output_tokens);
  EXPECT_NEAR(code_output.mean, 27.88, 0.6);
  EXPECT_NEAR(code_output.median, 13, 1);
}

TEST(ProfileTest, BurstGptHasTheSamplesMomentsAndCorrelation) {
  const auto burst = SampleProfile("burstgpt", 500'000, 1);
  ASSERT_TRUE(burst.ok()) << burst.status();
  const TraceMoments prompt = Of(*burst, &TraceRequest::prompt_tokens);
  EXPECT_NEAR(prompt.mean, 362.9, 0.02 * 362.9);
  EXPECT_NEAR(prompt.deviation, 502.2, 0.1 * 502.2);
  EXPECT_EQ(prompt.median, 217);
  EXPECT_LE(prompt.largest, 14'117);
  const TraceMoments output = Of(*burst, &TraceRequest::output_tokens);
  EXPECT_NEAR(output.mean, 57.05, 0.02 * 57.05);
  EXPECT_NEAR(output.deviation, 154.4, 0.1 * 154.4);
  EXPECT_EQ(output.median, 7);
  EXPECT_LE(output.largest, 3'206);
  EXPECT_NEAR(LengthCorrelation(*burst), 0.367, 0.03);
}

// Means over occupied slots in the long run: a request is counted in proportion to its output length.
TEST(ProfileTest, BurstGptFillsSlotsAsTheSampleDoes) {
  const auto burst = SampleProfile("burstgpt", 500'000, 2);
  ASSERT_TRUE(burst.ok()) << burst.status();
  double tokens = 0, prompts = 0, ages = 0;
  for (const TraceRequest& request : burst->requests) {
    const double output = static_cast<double>(request.output_tokens);
    tokens += output;
    prompts += output * static_cast<double>(request.prompt_tokens);
    ages += output * (output - 1) / 2;
  }
  EXPECT_NEAR(prompts / tokens, 861, 86);
  EXPECT_NEAR(ages / tokens, 237, 24);
}

// Figures measured with these profiles stay comparable only if adding a profile does not change the draws of
// the others.
TEST(ProfileTest, ExistingProfilesKeepTheirDraws) {
  const auto hash = [](const Trace& trace) {
    uint64_t hash = 0;
    for (const TraceRequest& request : trace.requests) {
      hash = Mix64(hash ^ static_cast<uint64_t>(request.prompt_tokens));
      hash = Mix64(hash ^ static_cast<uint64_t>(request.output_tokens));
    }
    return hash;
  };
  EXPECT_EQ(hash(*SampleProfile("conversation", 20'000, 3)), 0xde8700fc45a99577u);
  EXPECT_EQ(hash(*SampleProfile("code", 20'000, 3)), 0x9d08880350903f58u);
}

TEST(ProfileTest, SameSeedSameRequests) {
  for (const char* name : {"code", "burstgpt"}) {
    const auto a = SampleProfile(name, 100, 7), b = SampleProfile(name, 200, 7),
               c = SampleProfile(name, 100, 8);
    ASSERT_TRUE(a.ok() && b.ok() && c.ok());
    int different = 0;
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(a->requests[i].prompt_tokens, b->requests[i].prompt_tokens);
      EXPECT_EQ(a->requests[i].output_tokens, b->requests[i].output_tokens);
      different += a->requests[i].prompt_tokens != c->requests[i].prompt_tokens;
    }
    EXPECT_GT(different, 90) << name;
  }
}

TEST(ProfileTest, SyntheticProfilesHaveTheirDocumentedShapes) {
  constexpr int64_t kCount = 100'000;
  const auto count = [&](const char* name, const auto& holds) {
    int64_t found = 0;
    for (const TraceRequest& request : SampleProfile(name, kCount, 5)->requests)
      found += holds(request) ? 1 : 0;
    return static_cast<double>(found) / kCount;
  };
  EXPECT_EQ(count("constant", [](const auto& r) { return r.prompt_tokens == 512 && r.output_tokens == 256; }),
            1);
  EXPECT_NEAR(count("bimodal_outputs", [](const auto& r) { return r.output_tokens == 2'000; }), 0.1, 0.005);
  EXPECT_NEAR(count("bimodal_outputs", [](const auto& r) { return r.output_tokens == 20; }), 0.9, 0.005);
  EXPECT_NEAR(count("bimodal_prompts", [](const auto& r) { return r.prompt_tokens == 20'000; }), 0.05, 0.003);
  EXPECT_NEAR(count("exponential", [](const auto& r) { return r.output_tokens > 1'000; }), std::exp(-1),
              0.01);
  EXPECT_NEAR(count("agentic", [](const auto& r) { return r.prompt_tokens > 4'915; }), 0.5, 0.01);
  EXPECT_GT(count("correlated",
                  [](const auto& r) {
                    const double share = static_cast<double>(r.output_tokens) / r.prompt_tokens;
                    return share > 0.3 && share < 0.8;
                  }),
            0.9);
}

TEST(ProfileTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const auto status = SampleProfile("chat", 10, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("conversation, code, burstgpt"));
  EXPECT_EQ(SampleProfile("code", 0, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bfio
