// Predicted lengths taken as exact, and requests that outlive their prediction.
#include "router/core/lookahead/fixed_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

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
        const int64_t stay = lookahead.Lifetime(resident, time, steps, absl::MakeSpan(alive));
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

}  // namespace
}  // namespace bfio::core
