#include <gtest/gtest.h>

#include <string>

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

TEST(LookaheadRegistry, UnknownNamesAndWrongSettingsAreRefusedByName) {
  const auto refused = [](const char* name, const LookaheadOptions& options) {
    return std::string(MakeLookahead(name, options).status().message());
  };
  EXPECT_EQ(refused("psychic", {}),
            "lookahead 'psychic' is unknown, choose one of none, survival, hint, max_tokens, oracle");
  EXPECT_EQ(refused("survival", {.memory_requests = std::nan("")}),
            "lookahead: memory_requests is nan; must be at least 1");
  EXPECT_EQ(refused("survival", {.ages_per_octave = 12}),
            "lookahead: ages_per_octave is 12; must be a power of two within 1..65536");
  EXPECT_EQ(MakeLookahead("hint", {.prior_mean_tokens = 0.5}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bfio::core
