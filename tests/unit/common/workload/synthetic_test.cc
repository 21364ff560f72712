#include "common/workload/synthetic.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/testing/length_moments.h"

namespace bfio {
namespace {

constexpr int64_t kMany = 200'000;

Moments Prompts(const Trace& trace) {
  return LengthMoments(trace, &TraceRequest::prompt_tokens);
}
Moments Outputs(const Trace& trace) {
  return LengthMoments(trace, &TraceRequest::output_tokens);
}

TEST(SyntheticTest, UniformPromptsReachBothEndsWithTheRightMoments) {
  const Trace trace = UniformPromptsConstantOutputs(10, 109, 7, kMany, 1);
  const Moments prompt = Prompts(trace), output = Outputs(trace);
  EXPECT_EQ(prompt.smallest, 10);
  EXPECT_EQ(prompt.largest, 109);
  EXPECT_NEAR(prompt.mean, 59.5, 0.35);  // 5 standard errors
  EXPECT_NEAR(prompt.deviation, std::sqrt((100 * 100 - 1) / 12.0), 0.2);
  EXPECT_EQ(output.smallest, 7);
  EXPECT_EQ(output.largest, 7);
  EXPECT_FALSE(trace.has_arrivals);
}

TEST(SyntheticTest, OneLengthIsARangeToo) {
  const Trace trace = UniformPromptsConstantOutputs(5, 5, 1, 10, 1);
  EXPECT_EQ(Prompts(trace).smallest, 5);
  EXPECT_EQ(Prompts(trace).largest, 5);
}

TEST(SyntheticTest, GeometricOutputsHaveTheRightMeanAndTail) {
  constexpr double kEnd = 0.02;
  const Trace trace = UniformPromptsGeometricOutputs(1, 1000, kEnd, kMany, 2);
  const Moments output = Outputs(trace);
  EXPECT_EQ(output.smallest, 1);
  EXPECT_NEAR(output.mean, 1 / kEnd, 0.6);
  EXPECT_NEAR(output.deviation, std::sqrt(1 - kEnd) / kEnd, 1.2);
  int64_t first = 0, beyond = 0;
  for (const TraceRequest& request : trace.requests) {
    first += request.output_tokens == 1;
    beyond += request.output_tokens > 100;
  }
  EXPECT_NEAR(static_cast<double>(first) / kMany, kEnd, 0.0016);
  EXPECT_NEAR(static_cast<double>(beyond) / kMany, std::pow(1 - kEnd, 100), 0.004);
  EXPECT_NEAR(LengthCorrelation(trace), 0, 0.012);
}

TEST(SyntheticTest, RequestsThatEndWithCertaintyHaveOneToken) {
  EXPECT_EQ(Outputs(UniformPromptsGeometricOutputs(1, 2, 1, 100, 3)).largest, 1);
}

TEST(SyntheticTest, PromptsDoNotDependOnTheOutputDistribution) {
  const Trace constant = UniformPromptsConstantOutputs(1, 900, 5, 100, 4);
  const Trace geometric = UniformPromptsGeometricOutputs(1, 900, 0.1, 100, 4);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(constant.requests[i].prompt_tokens, geometric.requests[i].prompt_tokens);
  }
}

// Expected values: the density integrated on a grid over the quadrant that remains after truncation (85 % of
// the mass).
TEST(SyntheticTest, TruncatedNormalHasTheMomentsOfItsDensity) {
  const Trace trace = TruncatedNormalLengths(kMany, 5);
  const Moments prompt = Prompts(trace), output = Outputs(trace);
  EXPECT_GE(prompt.smallest, 1);
  EXPECT_GE(output.smallest, 1);
  EXPECT_NEAR(prompt.mean, 3726, 25);
  EXPECT_NEAR(prompt.deviation, 2166, 20);
  EXPECT_NEAR(output.mean, 1255, 7.5);
  EXPECT_NEAR(output.deviation, 633.5, 6);
  EXPECT_NEAR(LengthCorrelation(trace), -0.075, 0.012);
}

TEST(SyntheticTest, SameSeedSameRequestsAndSmallerSamplesArePrefixes) {
  const auto make = [](int law, int64_t requests, uint64_t seed) {
    if (law == 0) return UniformPromptsConstantOutputs(1, 5000, 9, requests, seed);
    if (law == 1) return UniformPromptsGeometricOutputs(1, 5000, 0.01, requests, seed);
    return TruncatedNormalLengths(requests, seed);
  };
  for (int law = 0; law < 3; ++law) {
    const Trace a = make(law, 100, 7), b = make(law, 200, 7), c = make(law, 100, 8);
    int different = 0;
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(a.requests[i].prompt_tokens, b.requests[i].prompt_tokens);
      EXPECT_EQ(a.requests[i].output_tokens, b.requests[i].output_tokens);
      different += a.requests[i].prompt_tokens != c.requests[i].prompt_tokens;
    }
    EXPECT_GT(different, 90) << law;
  }
}

}  // namespace
}  // namespace bfio
