// Where a prompt is computed where ranks hand prompts over: on the rank that decodes, or on another one.
#include "router/core/scheduler/prompt_site.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <vector>

#include "router/core/scheduler/cluster.h"

namespace bfio::core::prompt_site_test {

constexpr GroupCost kCost = {
    .batch = {.c_s = 0.01, .a_s_per_token = 1e-4, .b0_tokens = 100, .k1_s_per_pair = 0}};

TEST(PromptSite, CountsWhatItAddsToTheTimesOfAll) {
  PromptSite site = {.cost = kCost, .rows = 40, .delayed = 5, .prompt = {60, 0}};
  EXPECT_EQ(AddedSeconds(site), 0) << "there are as many free rows";
  site.prompt.left = 160;
  EXPECT_NEAR(AddedSeconds(site), 6 * 0.01, 1e-12);
  site.pending = 100;
  EXPECT_NEAR(AddedSeconds(site), 0.01 + 6 * 0.016, 1e-12) << "behind another prompt";
  site.pending = 0;
  site.cost.terms = {.captured_rows = 150, .prompt_s = 0.001, .eager_s = 0.01};
  EXPECT_NEAR(AddedSeconds(site), 6 * 0.021, 1e-12);
  site.decodes = false;
  site.rows = 0, site.delayed = 0;
  EXPECT_NEAR(AddedSeconds(site), 0.01 + 0.006, 1e-12) << "a step of its own";
}

// One group that decodes, with a barrier, and one that computes prompts for it.
class PromptPlaces : public ::testing::Test {
 protected:
  void Open(int32_t slots, std::optional<GroupCost> cost = kCost) {
    WorkerSpec decodes = {.slots = slots, .kv_tokens = 100'000, .prefix_cache = true, .member = 1};
    if (cost) decodes.cost = cost->batch;
    cluster_.Apply(AddGroup{0, GroupKind::kCoupled});
    cluster_.Apply(OpenEpoch{0, {{decodes}}, 0, RequestSpec::kHandsOver});
    cluster_.Apply(AddGroup{1, GroupKind::kPrefill});
    cluster_.Apply(OpenEpoch{1, {{{.slots = 64, .kv_tokens = 100'000}}}, 0, RequestSpec::kDecodes});
  }
  // All of one `session` begin alike; 0: no other does.
  RequestSpec Request(int64_t prompt, uint32_t needs = RequestSpec::kDecodes, uint64_t session = 0) {
    auto blocks = std::make_shared<std::vector<uint64_t>>(prompt / kPrefixBlockTokens);
    std::iota(blocks->begin(), blocks->end(), (session > 0 ? session : 1'000 + last_) << 32);
    return {.id = ++last_, .prefill_tokens = prompt, .max_new_tokens = 50, .needs = needs, .prefix = blocks};
  }
  // It decodes there from then on.
  void Decode(int64_t prompt, uint64_t session = 0) {
    cluster_.Apply(Enqueue{Request(prompt, RequestSpec::kDecodes, session)});
    const std::optional<Plan> plan = cluster_.Apply(MakePlan{0}).plan;
    ASSERT_TRUE(plan.has_value());
    load_ += prompt;
    const StepReport report = {.step = ++step_,
                               .applied_plan = plan->apply_steps[0],
                               .load_tokens = load_,
                               .prefill = PrefillReport{2048, {}}};
    ASSERT_TRUE(cluster_.Apply(Report{0, 0, report}).status.ok());
  }
  bool Stays(int64_t prompt, uint64_t session = 0) {
    return cluster_.DecodesSooner(Request(prompt, RequestSpec::kDecodes, session));
  }

  Cluster cluster_{{}, {"least_work", {}}};
  RequestId last_ = 0;
  int64_t step_ = 0, load_ = 0;
};

TEST_F(PromptPlaces, ItStaysWhereItDelaysOthersLessThanAHandOffDelaysIt) {
  Open(8);
  EXPECT_TRUE(Stays(5'000)) << "nobody is delayed";
  Decode(96);
  Decode(96);
  EXPECT_TRUE(Stays(98));
  EXPECT_FALSE(Stays(5'000));
  // Prompts wait for the other rank.
  for (int i = 0; i < 3; ++i) cluster_.Apply(Enqueue{Request(8'000, RequestSpec::kHandsOver)});
  EXPECT_TRUE(Stays(5'000));
}

TEST_F(PromptPlaces, ItStaysWhereItsPrefixIsCached) {
  Open(8);
  Decode(2'048, 1);
  Decode(96);
  EXPECT_TRUE(Stays(2'048 + 90, 1));
  EXPECT_FALSE(Stays(2'048 + 90, 2));
}

TEST_F(PromptPlaces, NoneTakesASlotThatIsPromised) {
  Open(2);
  EXPECT_TRUE(Stays(10));
  cluster_.Apply(Enqueue{Request(10, RequestSpec::kHandsOver)});
  EXPECT_TRUE(Stays(10));
  cluster_.Apply(Enqueue{Request(10, RequestSpec::kHandsOver)});
  EXPECT_FALSE(Stays(10));
  EXPECT_EQ(cluster_.Promised().requests, 0);
  cluster_.Apply(MakePlan{1});
  EXPECT_EQ(cluster_.PrefillsUnderWay(), 2);
  EXPECT_EQ(cluster_.Promised().requests, 2);
  EXPECT_EQ(cluster_.Promised().tokens, cluster_.group(1)->HeldTokens());
  EXPECT_FALSE(Stays(10));
}

TEST_F(PromptPlaces, WithoutACostAStepIsAssumedToTakeAsLongAs256Tokens) {
  Open(8, std::nullopt);
  Decode(96);
  EXPECT_TRUE(Stays(255));
  EXPECT_TRUE(Stays(500));
  EXPECT_FALSE(Stays(600));
}

}  // namespace bfio::core::prompt_site_test
