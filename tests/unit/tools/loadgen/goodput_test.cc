#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/loadgen/results.h"

namespace bfio::loadgen {
namespace {

using ::testing::HasSubstr;

TEST(GoodputTest, LimitsAreReadByName) {
  EXPECT_FALSE(ParseGoodput("")->any());
  const GoodputLimits all = *ParseGoodput("ttft:0.5,tpot:0.05,e2e:30");
  EXPECT_EQ(all.ttft_s, 0.5);
  EXPECT_EQ(all.tpot_s, 0.05);
  EXPECT_EQ(all.e2e_s, 30);
  EXPECT_EQ(ParseGoodput("e2el:2")->e2e_s, 2) << "vLLM's name";
  const struct {
    const char* text;
    const char* said;
  } kBad[] = {{"ttfb:1", "'ttfb:1'"},
              {"ttft", "''"},
              {"ttft:x", "'x'"},
              {"ttft:0", "'0'"},
              {"ttft:-1", "'-1'"},
              {"ttft:nan", "'nan'"},
              {"ttft:inf", "inf"},
              {"ttft:1,", "''"},
              {"ttft:1,ttft:2", "two limits on ttft"},
              {"e2e:1,e2el:2", "two limits"}};
  for (const auto& bad : kBad) {
    const absl::Status status = ParseGoodput(bad.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.said)) << bad.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--goodput")) << bad.text;
  }
}

// A request of 11 tokens: TPOT is a tenth of the time after the first token.
EndedRequest Request(double ttft_s, double tpot_s) {
  return {.code = "OK", .output_tokens = 11, .ttft_s = ttft_s, .e2e_s = ttft_s + 10 * tpot_s};
}

TEST(GoodputTest, ARequestIsGoodWithinEveryLimit) {
  Goodput goodput({.ttft_s = 1, .tpot_s = 0.5, .e2e_s = 5.5});
  EXPECT_TRUE(goodput.Add(Request(1, 0.25))) << "limits are inclusive";
  EXPECT_FALSE(goodput.Add(Request(1.25, 0.25)));
  EXPECT_FALSE(goodput.Add(Request(0, 0.5625))) << "TPOT, and E2E by that";
  EXPECT_FALSE(goodput.Add(Request(0.75, 0.5))) << "E2E alone";
  EXPECT_EQ(goodput.good(), 1u);
  EXPECT_EQ(goodput.missed_ttft(), 1u);
  EXPECT_EQ(goodput.missed_tpot(), 1u);
  EXPECT_EQ(goodput.missed_e2e(), 2u);
  EXPECT_TRUE(Goodput({.tpot_s = 0.001}).Add({.code = "OK", .output_tokens = 1, .ttft_s = 9, .e2e_s = 9}))
      << "one token has no TPOT to miss";
}

TEST(GoodputTest, FailedAndUnsentAreNotGoodAndInterruptedDoNotCount) {
  Results r = {.goodput = Goodput({.ttft_s = 1})};
  EXPECT_FALSE(r.good_share().has_value());
  r.Add(Request(0.5, 0.1));
  EXPECT_EQ(r.good_share(), 1.0);
  r.Add({.code = "UNAVAILABLE", .ttft_s = 0.1});
  EXPECT_EQ(r.good_share(), 0.5);
  r.not_sent = 2;
  EXPECT_EQ(r.good_share(), 0.25);
  r.Add({.code = "CANCELLED", .interrupted = true});
  EXPECT_EQ(r.good_share(), 0.25);
  r.duration_s = 2;
  EXPECT_EQ(r.good_per_s(), 0.5);
}

}  // namespace
}  // namespace bfio::loadgen
