// The admission rules one by one: which requests each begins, preempts or evicts, and its errors for invalid
// settings.
#include "research/admission/admission_rule.h"

#include <gmock/gmock.h>

#include <memory>
#include <vector>

namespace bfio::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<AdmissionRule> Make(const char* text, int64_t memory) {
  AdmissionOptions options;
  options.memory = memory;
  auto rule = MakeAdmissionRule(text, options);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return *std::move(rule);
}

AdmissionRound Decide(AdmissionRule& rule, int64_t round) {
  AdmissionRound out;
  rule.Decide(round, out);
  return out;
}

TEST(AdmissionRule, ShortestFirstStopsAtTheFirstThatDoesNotFit) {
  const auto rule = Make("mc_sf", 20);
  rule->OnArrival({1, 1, 9});
  rule->OnArrival({2, 15, 3});  // does not fit beside requests 3 and 4
  rule->OnArrival({3, 2, 1});
  rule->OnArrival({4, 2, 2});
  EXPECT_THAT(Decide(*rule, 0).begin, ElementsAre(3, 4));
  EXPECT_EQ(rule->waiting(), 2);
}

TEST(AdmissionRule, McFcfsKeepsTheOrderOfArrival) {
  const auto rule = Make("mc_fcfs", 20);
  rule->OnArrival({1, 1, 9});
  rule->OnArrival({2, 15, 3});
  rule->OnArrival({3, 2, 1});
  EXPECT_THAT(Decide(*rule, 0).begin, ElementsAre(1));
}

TEST(AdmissionRule, ARequestThatEndsEarlyFreesMemory) {
  const auto rule = Make("mc_sf", 12);
  rule->OnArrival({1, 2, 10});
  rule->OnArrival({2, 1, 10});
  EXPECT_THAT(Decide(*rule, 0).begin, ElementsAre(1));
  EXPECT_THAT(Decide(*rule, 1).begin, IsEmpty());
  rule->OnEnd(1);
  EXPECT_THAT(Decide(*rule, 2).begin, ElementsAre(2));
}

TEST(AdmissionRule, OverrunsCountAndTheYoungestIsPreempted) {
  const auto rule = Make("mc_sf", 20);
  rule->OnArrival({1, 4, 4});
  rule->OnArrival({2, 4, 8});
  EXPECT_THAT(Decide(*rule, 0).begin, ElementsAre(1, 2));
  for (int64_t round = 1; round <= 6; ++round) {
    const AdmissionRound out = Decide(*rule, round);
    EXPECT_THAT(out.preempt, IsEmpty()) << round;
  }
  // Request 1 was predicted to end after 4 tokens and continues: at round 7 the two requests hold 11 + 11
  // tokens.
  EXPECT_THAT(Decide(*rule, 7).preempt, ElementsAre(2));
  EXPECT_EQ(rule->waiting(), 1);
  // Request 2 would resume with a prompt of 11 tokens and one token to generate.
  EXPECT_THAT(Decide(*rule, 8).begin, IsEmpty());
  rule->OnEnd(1);
  EXPECT_THAT(Decide(*rule, 9).begin, IsEmpty()) << "at its last round's end 1 still holds its tokens";
  EXPECT_THAT(Decide(*rule, 10).begin, ElementsAre(2));
}

TEST(AdmissionRule, AMarginIsAddedToPredictedLengths) {
  // Two requests of 4 + 4 tokens fit into 16; with a margin of one more token each they do not.
  for (const char* text : {"mc_sf", "mc_sf:margin=1"}) {
    const auto rule = Make(text, 16);
    rule->OnArrival({1, 4, 4});
    rule->OnArrival({2, 4, 4});
    EXPECT_EQ(Decide(*rule, 0).begin.size(), text == std::string("mc_sf") ? 2u : 1u) << text;
  }
}

TEST(AdmissionRule, GreedyProtectionEvictsAllOnOverflow) {
  const auto rule = Make("protect:alpha=0.2", 10);
  for (RequestId id = 1; id <= 3; ++id) rule->OnArrival({id, 4, 9});
  EXPECT_THAT(Decide(*rule, 0).begin, ElementsAre(1, 2)) << "a third would take more than 8";
  EXPECT_THAT(Decide(*rule, 1).evict, IsEmpty()) << "10 of 10";
  const AdmissionRound over = Decide(*rule, 2);
  EXPECT_THAT(over.evict, ElementsAre(1, 2));
  EXPECT_THAT(over.begin, ElementsAre(1, 2)) << "and they begin anew, in their old place";
}

TEST(AdmissionRule, ClearingEvictsSome) {
  const auto rule = Make("protect:alpha=0,beta=0.5", 40);
  for (RequestId id = 1; id <= 10; ++id) rule->OnArrival({id, 4, 9});
  EXPECT_EQ(Decide(*rule, 0).begin.size(), 10u);
  const size_t evicted = Decide(*rule, 1).evict.size();
  EXPECT_GT(evicted, 0u);
  EXPECT_LT(evicted, 10u);
}

TEST(AdmissionRule, TheWatermarkKeepsBlocksFreeAndPreemptsTheYoungest) {
  // Ten blocks of four tokens; prompts must leave one block free.
  const auto rule = Make("watermark:share=0.1,block=4", 40);
  rule->OnArrival({1, 15, 9});  // four blocks
  rule->OnArrival({2, 16, 9});
  rule->OnArrival({3, 5, 9});  // two blocks, of which one is left
  EXPECT_THAT(Decide(*rule, 0).begin, ElementsAre(1, 2));
  for (int64_t round = 1; round <= 4; ++round) {
    EXPECT_THAT(Decide(*rule, round).preempt, IsEmpty()) << "19 and 20 tokens take five blocks each";
  }
  EXPECT_EQ(rule->waiting(), 1);
  EXPECT_THAT(Decide(*rule, 5).preempt, ElementsAre(2)) << "five and six";
  rule->OnEnd(1);
  EXPECT_THAT(Decide(*rule, 6).begin, ElementsAre(2, 3)) << "2 with 21 tokens, before 3";
}

TEST(AdmissionRule, InvalidSettingsAreRefusedByName) {
  AdmissionOptions options;
  options.memory = 10;
  const auto message = [&](const char* text) {
    return std::string(MakeAdmissionRule(text, options).status().message());
  };
  EXPECT_THAT(message("sjf"), HasSubstr("'sjf'"));
  EXPECT_THAT(message("protect:gamma=1"), HasSubstr("'gamma'"));
  EXPECT_THAT(message("protect:alpha=x"), HasSubstr("'x'"));
  EXPECT_THAT(message("protect:alpha=1"), HasSubstr("alpha"));
  EXPECT_THAT(message("protect:alpha=nan"), HasSubstr("alpha"));
  EXPECT_THAT(message("protect:alpha=0.1,beta=0"), HasSubstr("beta"));
  EXPECT_THAT(message("watermark:share=1"), HasSubstr("share"));
  EXPECT_THAT(message("watermark:block=0"), HasSubstr("block"));
  EXPECT_THAT(message("mc_sf:margin=-1"), HasSubstr("margin"));
}

}  // namespace
}  // namespace bfio::sim
