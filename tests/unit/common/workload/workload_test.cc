#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/workload/arrivals.h"
#include "common/workload/trace.h"

namespace bfio {
namespace {

struct GapStatistics {
  double rate = 0;
  // Squared coefficient of variation of the gaps between arrivals.
  double scv = 0;
};

GapStatistics Measure(const ArrivalOptions& options, uint64_t seed, int count = 200000) {
  auto process = ArrivalProcess::Create(options, Trace(), seed);
  EXPECT_TRUE(process.ok()) << process.status();
  double last = 0, sum = 0, sum_of_squares = 0;
  for (int i = 0; i < count; ++i) {
    const double now = process->Next();
    EXPECT_GE(now, last);
    sum += now - last;
    sum_of_squares += (now - last) * (now - last);
    last = now;
  }
  const double mean = sum / count;
  return {1 / mean, (sum_of_squares / count - mean * mean) / (mean * mean)};
}

TEST(ArrivalsTest, GapsHaveTheirRateAndBurstiness) {
  const struct {
    ArrivalOptions options;
    double rate, scv;
  } kCases[] = {
      {{.kind = "poisson", .rate = 25}, 25, 1},
      {{.kind = "poisson", .rate = 10, .burstiness = 0.1}, 10, 1},  // ignores burstiness
      {{.kind = "poisson", .rate = 10, .time_scale = 4}, 40, 1},
      {{.kind = "gamma", .rate = 10, .burstiness = 0.25}, 10, 4},
      {{.kind = "gamma", .rate = 10, .burstiness = 0.5}, 10, 2},
      {{.kind = "gamma", .rate = 10, .burstiness = 1}, 10, 1},
      {{.kind = "gamma", .rate = 10, .burstiness = 4}, 10, 0.25},
  };
  for (const auto& [options, rate, scv] : kCases) {
    SCOPED_TRACE(options.kind + " " + std::to_string(options.burstiness));
    const GapStatistics s = Measure(options, 2);
    EXPECT_NEAR(s.rate, rate, 0.02 * rate);
    EXPECT_NEAR(s.scv, scv, 0.06 * scv);
  }
}

Trace FourArrivals() {
  Trace trace;
  trace.source = "four";
  trace.has_arrivals = true;
  for (const double t : {0.0, 1.0, 4.0, 6.0}) trace.requests.push_back({t, 1, 1});
  return trace;
}

TEST(ArrivalsTest, TraceTimesAreKeptScaledAndWrapRoundOrStretchedToARate) {
  auto scaled = ArrivalProcess::Create({.kind = "trace", .time_scale = 2}, FourArrivals(), 1);
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  // The mean gap is 2 s, so the second round begins at 8 s of the trace's time.
  for (const double expected : {0.0, 0.5, 2.0, 3.0, 4.0, 4.5, 6.0, 7.0, 8.0}) {
    EXPECT_DOUBLE_EQ(scaled->Next(), expected);
  }
  auto stretched = ArrivalProcess::Create({.kind = "trace", .rate = 5}, FourArrivals(), 1);
  ASSERT_TRUE(stretched.ok()) << stretched.status();
  double last = 0;
  for (int i = 0; i < 4001; ++i) last = stretched->Next();
  EXPECT_NEAR(last, 800, 1e-6);
}

TEST(ArrivalsTest, BadOptionsAreRefused) {
  const Trace no_arrivals;
  const ArrivalOptions kBad[] = {
      {.kind = "uniform", .rate = 1},
      {.kind = "poisson", .rate = 0},
      {.kind = "poisson", .rate = -1},
      {.kind = "poisson", .rate = NAN},
      {.kind = "gamma", .rate = INFINITY},
      {.kind = "gamma", .rate = 1, .burstiness = 0},
      {.kind = "poisson", .rate = 1, .time_scale = 0},
      {.kind = "trace"},
  };
  for (const ArrivalOptions& options : kBad) {
    EXPECT_EQ(ArrivalProcess::Create(options, no_arrivals, 1).status().code(),
              absl::StatusCode::kInvalidArgument)
        << options.kind;
  }
}

// Of a trace's lengths.
struct TraceMoments {
  double mean = 0, deviation = 0, median = 0, p95 = 0, smallest = 0, largest = 0;
};

// REQUIRES: trace.requests is not empty.
TraceMoments LengthMoments(const Trace& trace, int64_t TraceRequest::*field) {
  std::vector<int64_t> values;
  double sum = 0, squares = 0;
  for (const TraceRequest& request : trace.requests) {
    const double value = static_cast<double>(request.*field);
    values.push_back(request.*field);
    sum += value;
    squares += value * value;
  }
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const double count = static_cast<double>(n), mean = sum / count;
  return {mean,
          std::sqrt(std::max(0.0, squares / count - mean * mean)),
          static_cast<double>(values[n / 2]),
          static_cast<double>(values[n * 95 / 100]),
          static_cast<double>(values.front()),
          static_cast<double>(values.back())};
}

// Pearson correlation of prompt and output lengths. REQUIRES: neither column is constant.
double LengthCorrelation(const Trace& trace) {
  const TraceMoments prompt = LengthMoments(trace, &TraceRequest::prompt_tokens);
  const TraceMoments output = LengthMoments(trace, &TraceRequest::output_tokens);
  double products = 0;
  for (const TraceRequest& request : trace.requests) {
    products += (static_cast<double>(request.prompt_tokens) - prompt.mean) *
                (static_cast<double>(request.output_tokens) - output.mean);
  }
  return products / static_cast<double>(trace.requests.size()) / prompt.deviation / output.deviation;
}

TEST(ProfileTest, LengthsFollowThePublishedQuantilesAndTheSamplesMoments) {
  const struct {
    const char* profile;
    int64_t TraceRequest::*field;
    double mean, mean_error, median, median_error;
  } kCases[] = {{"conversation", &TraceRequest::prompt_tokens, 1154.7, 25, 1020, 10},
                {"conversation", &TraceRequest::output_tokens, 211.1, 4, 129, 3},
                {"code", &TraceRequest::prompt_tokens, 2047.85, 20, 1469, 20},
                {"code", &TraceRequest::output_tokens, 27.88, 0.6, 13, 1},
                {"burstgpt", &TraceRequest::prompt_tokens, 362.9, 0.02 * 362.9, 217, 0},
                {"burstgpt", &TraceRequest::output_tokens, 57.05, 0.02 * 57.05, 7, 0}};
  for (const auto& c : kCases) {
    const auto sample = SampleProfile(c.profile, 500'000, 1);
    ASSERT_TRUE(sample.ok());
    EXPECT_FALSE(sample->has_arrivals);
    const TraceMoments moments = LengthMoments(*sample, c.field);
    EXPECT_NEAR(moments.mean, c.mean, c.mean_error) << c.profile;
    EXPECT_NEAR(moments.median, c.median, c.median_error) << c.profile;
  }
  EXPECT_NEAR(LengthMoments(*SampleProfile("code", 500'000, 1), &TraceRequest::prompt_tokens).p95, 7303, 60);
  const auto burst = SampleProfile("burstgpt", 500'000, 1);
  const TraceMoments prompt = LengthMoments(*burst, &TraceRequest::prompt_tokens);
  const TraceMoments output = LengthMoments(*burst, &TraceRequest::output_tokens);
  EXPECT_NEAR(prompt.deviation, 502.2, 0.1 * 502.2);
  EXPECT_LE(prompt.largest, 14'117);
  EXPECT_NEAR(output.deviation, 154.4, 0.1 * 154.4);
  EXPECT_LE(output.largest, 3'206);
  EXPECT_NEAR(LengthCorrelation(*burst), 0.367, 0.03);
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

TEST(ProfileTest, SyntheticProfilesHaveTheirDocumentedShapes) {
  constexpr int64_t kCount = 100'000;
  const auto count = [&](const char* name, const auto& holds) {
    int64_t found = 0;
    const auto trace = SampleProfile(name, kCount, 5);
    for (const TraceRequest& request : trace->requests) found += holds(request) ? 1 : 0;
    return static_cast<double>(found) / kCount;
  };
  EXPECT_EQ(count("constant", [](const auto& r) { return r.prompt_tokens == 512 && r.output_tokens == 256; }),
            1);
  EXPECT_NEAR(count("bimodal_outputs", [](const auto& r) { return r.output_tokens == 2'000; }), 0.1, 0.005);
  EXPECT_NEAR(count("bimodal_outputs", [](const auto& r) { return r.output_tokens == 20; }), 0.9, 0.005);
  EXPECT_NEAR(count("bimodal_prompts", [](const auto& r) { return r.prompt_tokens == 20'000; }), 0.05, 0.003);
  EXPECT_NEAR(count("rare_long_outputs", [](const auto& r) { return r.output_tokens > 150; }), 0.1, 0.005);
  EXPECT_NEAR(count("heavy_tails", [](const auto& r) { return r.prompt_tokens > 882; }), 0.1, 0.005);
  EXPECT_GT(
      count("heavy_tails", [](const auto& r) { return r.prompt_tokens > 882 && r.output_tokens > 126; }),
      0.09)
      << "long prompts bring long outputs";
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

}  // namespace
}  // namespace bfio
