#include "common/workload/arrivals.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

TEST(ArrivalsTest, PoissonHasItsRateAndExponentialGaps) {
  const GapStatistics s = Measure({.kind = "poisson", .rate = 25}, 1);
  EXPECT_NEAR(s.rate, 25, 0.25);
  EXPECT_NEAR(s.scv, 1, 0.03);
}

TEST(ArrivalsTest, GammaBurstinessIsTheShape) {
  for (const double burstiness : {0.25, 0.5, 1.0, 4.0}) {
    const GapStatistics s = Measure({.kind = "gamma", .rate = 10, .burstiness = burstiness}, 2);
    EXPECT_NEAR(s.rate, 10, 0.2) << burstiness;
    EXPECT_NEAR(s.scv * burstiness, 1, 0.06) << burstiness;
  }
}

TEST(ArrivalsTest, PoissonIgnoresBurstiness) {
  EXPECT_NEAR(Measure({.kind = "poisson", .rate = 10, .burstiness = 0.1}, 3).scv, 1, 0.03);
}

TEST(ArrivalsTest, TimeScaleDividesTimes) {
  EXPECT_NEAR(Measure({.kind = "poisson", .rate = 10, .time_scale = 4}, 4).rate, 40, 0.4);
}

TEST(ArrivalsTest, SameSeedSameTimes) {
  const ArrivalOptions options = {.kind = "gamma", .rate = 3, .burstiness = 0.5};
  auto a = ArrivalProcess::Create(options, Trace(), 9), b = ArrivalProcess::Create(options, Trace(), 9);
  auto c = ArrivalProcess::Create(options, Trace(), 10);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  for (int i = 0; i < 100; ++i) {
    const double time = a->Next();
    EXPECT_EQ(time, b->Next());
    EXPECT_NE(time, c->Next());
  }
}

Trace FourArrivals() {
  Trace trace;
  trace.source = "four";
  trace.has_arrivals = true;
  for (const double t : {0.0, 1.0, 4.0, 6.0}) trace.requests.push_back({t, 1, 1});
  return trace;
}

TEST(ArrivalsTest, TraceTimesAreKeptScaledAndWrapRound) {
  auto process = ArrivalProcess::Create({.kind = "trace", .time_scale = 2}, FourArrivals(), 1);
  ASSERT_TRUE(process.ok()) << process.status();
  // The mean gap is 2 s, so the second round begins at 8 s of the trace's time.
  for (const double expected : {0.0, 0.5, 2.0, 3.0, 4.0, 4.5, 6.0, 7.0, 8.0}) {
    EXPECT_DOUBLE_EQ(process->Next(), expected);
  }
}

TEST(ArrivalsTest, RateStretchesATrace) {
  auto process = ArrivalProcess::Create({.kind = "trace", .rate = 5}, FourArrivals(), 1);
  ASSERT_TRUE(process.ok()) << process.status();
  double last = 0;
  for (int i = 0; i < 4001; ++i) last = process->Next();
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

}  // namespace
}  // namespace bfio
