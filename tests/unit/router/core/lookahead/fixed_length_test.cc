// Predicted lengths taken as exact, and requests that outlive their prediction.
#include "router/core/lookahead/fixed_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/rng.h"

namespace bfio::core {
namespace {

// A request that has outlived its prediction still counts at the plan's step. Its expected remaining time
// grows with the overrun and never exceeds its limit.
TEST(Oracle, ARequestThatOutlivesItsPredictionStillCounts) {
  FixedLengthLookahead lookahead(FixedLengthLookahead::Kind::kOracle);
  constexpr int64_t kLimit = 60, kPrompt = 100;
  const std::vector<int64_t> steps = {0, 1, 5};
  std::vector<double> alive(steps.size());
  for (const int64_t predicted : {1, 7, 20}) {
    for (const int64_t ahead : {1, 2, 5}) {
      int64_t last_end = 0;
      for (int64_t reported = 1; reported < kLimit; ++reported) {
        SCOPED_TRACE(::testing::Message() << predicted << " predicted, " << reported << " made");
        Resident resident = {.id = 1,
                             .first_step = 1,
                             .prefill_tokens = kPrompt,
                             .max_new_tokens = kLimit,
                             .expected_tokens = predicted};
        const PlanTime time = {reported, reported + ahead};
        // Steps that the request may still run by its limit.
        const int64_t left = kLimit - (reported + ahead - 1);
        const int64_t stay = lookahead.Stay(resident, time, steps, absl::MakeSpan(alive));
        if (reported < predicted) {
          EXPECT_EQ(stay, std::max<int64_t>(0, predicted - (reported + ahead - 1)));
          continue;
        }
        EXPECT_GE(stay, std::min<int64_t>(1, std::max<int64_t>(0, left)));
        EXPECT_LE(stay, std::max<int64_t>(0, left));
        const int64_t end = reported + ahead + stay;
        EXPECT_GE(end, std::min(last_end, kLimit + 1));
        last_end = end;
        std::vector<double> load(3);
        lookahead.Project({&resident, 1}, time, absl::MakeSpan(load));
        EXPECT_EQ(load[0], left > 0 ? static_cast<double>(kPrompt + reported + ahead - 1) : 0);
      }
    }
  }
}

Resident RandomResident(Rng& rng, const PlanTime& time) {
  Resident resident;
  resident.first_step = time.reported_step - static_cast<int64_t>(rng.Below(60));
  resident.prefill_tokens = 1 + static_cast<int64_t>(rng.Below(100));
  resident.max_new_tokens = 1 + static_cast<int64_t>(rng.Below(80));
  resident.expected_tokens =
      1 + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(resident.max_new_tokens)));
  resident.inflight = rng.Below(4) == 0;
  resident.dropped = rng.Below(10) == 0;
  return resident;
}

TEST(Interval, OfWidthZeroEqualsTheOracle) {
  Rng rng(3);
  FixedLengthLookahead oracle(FixedLengthLookahead::Kind::kOracle),
      interval(FixedLengthLookahead::Kind::kInterval, 0);
  const std::vector<int64_t> steps = {0, 3};
  std::vector<double> alive(2), load(20), quiet(20), other_load(20), other_quiet(20);
  for (int i = 0; i < 3'000; ++i) {
    const PlanTime time = {100, 100 + 1 + static_cast<int64_t>(rng.Below(3))};
    const std::vector<Resident> residents = {RandomResident(rng, time), RandomResident(rng, time)};
    EXPECT_EQ(interval.Stay(residents[0], time, steps, absl::MakeSpan(alive)),
              oracle.Stay(residents[0], time, steps, absl::MakeSpan(alive)));
    oracle.Project(residents, time, absl::MakeSpan(load), absl::MakeSpan(quiet));
    interval.Project(residents, time, absl::MakeSpan(other_load), absl::MakeSpan(other_quiet));
    EXPECT_EQ(load, other_load);
    EXPECT_EQ(quiet, other_quiet);
    WaitingView request;
    request.max_new_tokens = residents[0].max_new_tokens;
    if (rng.Below(3) > 0) request.predicted_output_tokens = residents[0].expected_tokens;
    EXPECT_EQ(interval.Stay(request, steps, absl::MakeSpan(alive)),
              oracle.Stay(request, steps, absl::MakeSpan(alive)));
    EXPECT_EQ(interval.CurveKey(request, 50), oracle.CurveKey(request, 50));
  }
}

// For every true length within the interval: no request stays longer than the interval says, at any age, and
// one that has reached its prediction counts with its upper end.
TEST(Interval, NoRequestWithinTheErrorStaysLongerThanItsUpperEnd) {
  const double error = 0.4;
  FixedLengthLookahead interval(FixedLengthLookahead::Kind::kInterval, error);
  const std::vector<int64_t> steps = {0};
  std::vector<double> alive(1), load(1), quiet(1);
  for (int64_t predicted = 1; predicted <= 40; ++predicted) {
    for (int64_t length = 1; length <= 80; ++length) {
      if (std::abs(static_cast<double>(length - predicted)) > error * static_cast<double>(predicted))
        continue;
      WaitingView request;
      request.max_new_tokens = 1'000;
      request.predicted_output_tokens = predicted;
      EXPECT_GE(interval.Stay(request, steps, absl::MakeSpan(alive)), length);
      request.max_new_tokens = length;
      EXPECT_LE(interval.Stay(request, steps, absl::MakeSpan(alive)), length) << "its limit is known";
      Resident resident;
      resident.first_step = 1;
      resident.prefill_tokens = 10;
      resident.max_new_tokens = 1'000;
      resident.expected_tokens = predicted;
      for (int64_t reported = 1; reported < length; ++reported) {
        const PlanTime time = {reported, reported + 1};
        EXPECT_GE(interval.Stay(resident, time, steps, absl::MakeSpan(alive)), length - reported);
        interval.Project({&resident, 1}, time, absl::MakeSpan(load), absl::MakeSpan(quiet));
        EXPECT_EQ(load[0], static_cast<double>(10 + reported)) << "it is active, at whatever age";
      }
    }
  }
}

}  // namespace
}  // namespace bfio::core
