#include <gtest/gtest.h>

#include <cmath>

#include "router/core/lookahead/lookahead.h"

namespace bfio::core {
namespace {

TEST(LookaheadRegistry, EveryNameMakesALookaheadOfThatName) {
  for (const LookaheadInfo& info : RegisteredLookaheads()) {
    const auto lookahead = MakeLookahead(info.name);
    ASSERT_TRUE(lookahead.ok()) << lookahead.status();
    EXPECT_EQ((*lookahead)->name(), info.name);
    EXPECT_EQ((*lookahead)->predicts(), info.name != "none");
    EXPECT_FALSE(info.summary.empty());
  }
}

TEST(LookaheadRegistry, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_EQ(MakeLookahead("psychic").status().message(),
            "lookahead 'psychic' is unknown, choose one of none, survival, hint, max_tokens, oracle");
}

TEST(LookaheadRegistry, WrongSettingsAreNamed) {
  LookaheadOptions options = {.memory_requests = std::nan("")};
  EXPECT_EQ(MakeLookahead("survival", options).status().message(),
            "lookahead: memory_requests is nan; must be at least 1");
  options = {};
  options.ages_per_octave = 12;
  EXPECT_EQ(MakeLookahead("survival", options).status().message(),
            "lookahead: ages_per_octave is 12; must be a power of two within 1..65536");
  options = {};
  options.prior_mean_tokens = 0.5;
  EXPECT_EQ(MakeLookahead("hint", options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bfio::core
