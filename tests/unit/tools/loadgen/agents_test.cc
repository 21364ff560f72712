#include "tools/loadgen/agents.h"

#include "gmock/gmock.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rows with prompts of 10, 20, ... tokens and outputs of 1, 2, ... tokens.
std::vector<TraceRequest> Rows(int64_t n) {
  std::vector<TraceRequest> rows;
  for (int64_t i = 1; i <= n; ++i) rows.push_back({.prompt_tokens = 10 * i, .output_tokens = i});
  return rows;
}

TEST(ParseAgents, ParsesShapesAndNamesErrors) {
  const auto shapes = ParseAgents("sequence:4,fork_join:3,cycle:5");
  ASSERT_TRUE(shapes.ok()) << shapes.status();
  EXPECT_EQ(AgentsText(*shapes), "sequence:4,fork_join:3,cycle:5");
  for (const char* bad : {"", "sequence", "sequence:", "sequence:0", "sequence:1001", "sequence:-1", "tree:3",
                          "sequence:3,,fork_join:2", "fork_join:2x"}) {
    EXPECT_EQ(ParseAgents(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(std::string(ParseAgents("tree:3").status().message()), HasSubstr("tree:3"));
}

TEST(PlanAgent, ForkJoinHasStagesAndTheLongestRemainingPath) {
  const AgentPlan plan = PlanAgent({AgentShape::kForkJoin, 3}, Rows(5));
  ASSERT_EQ(plan.calls.size(), 5u);
  EXPECT_THAT(plan.calls[0].next, ElementsAre(1, 2, 3));
  EXPECT_THAT(plan.calls[2].next, ElementsAre(4));
  EXPECT_EQ(plan.calls[4].waits_for, 3u);
  EXPECT_EQ(plan.calls[4].stage, 2u);
  EXPECT_EQ(plan.calls[4].remaining_tokens, 0u);
  EXPECT_EQ(plan.calls[2].remaining_tokens, 5u);
  EXPECT_EQ(plan.calls[0].remaining_tokens, 4u + 5u);
  EXPECT_EQ(plan.calls[3].prompt_tokens, 40u);
}

TEST(PlanAgent, ACallOfACycleReadsAllThatWasSaidBefore) {
  const AgentPlan plan = PlanAgent({AgentShape::kCycle, 4}, Rows(4));
  uint32_t said = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.calls[i].prompt_tokens, said + 10 * (i + 1));
    said = plan.calls[i].prompt_tokens + plan.calls[i].output_tokens;
    EXPECT_EQ(plan.calls[i].stage, i);
    EXPECT_EQ(plan.calls[i].waits_for, i > 0 ? 1u : 0u);
  }
  EXPECT_EQ(plan.calls[0].remaining_tokens, 2u + 3u + 4u);
}

// An agent of two parallel calls between two others; its first call has ended.
class AgentsUnderWayTest : public ::testing::Test {
 protected:
  AgentsUnderWayTest() {
    agents_.Begin(plan_, 1.0);
    EXPECT_THAT(agents_.OnEnded(plan_, 0, true, 2.0), ElementsAre(1, 2));
  }

  const AgentPlan plan_ = PlanAgent({AgentShape::kForkJoin, 2}, Rows(4));
  AgentsUnderWay agents_;
};

TEST_F(AgentsUnderWayTest, CallsAreSentWhenTheirPredecessorsHaveEnded) {
  EXPECT_THAT(agents_.OnEnded(plan_, 2, true, 3.0), IsEmpty());
  EXPECT_THAT(agents_.OnEnded(plan_, 1, true, 4.0), ElementsAre(3));
  EXPECT_EQ(agents_.size(), 1u);
  EXPECT_THAT(agents_.OnEnded(plan_, 3, true, 6.0), IsEmpty());
  EXPECT_EQ(agents_.size(), 0u);
  EXPECT_EQ(agents_.results().completed, 1u);
  EXPECT_EQ(agents_.results().e2e_s.max(), 5.0);
}

TEST_F(AgentsUnderWayTest, AFailedCallEndsItsAgentWhenTheOthersHaveEnded) {
  EXPECT_THAT(agents_.OnEnded(plan_, 1, false, 2), IsEmpty());
  EXPECT_EQ(agents_.results().failed, 0u) << "a call is still under way";
  EXPECT_THAT(agents_.OnEnded(plan_, 2, true, 3), IsEmpty());
  EXPECT_EQ(agents_.results().failed, 1u);
  EXPECT_EQ(agents_.results().completed, 0u);
  EXPECT_EQ(agents_.results().calls_not_sent, 1u);
  EXPECT_EQ(agents_.results().e2e_s.count(), 0u);
}

TEST_F(AgentsUnderWayTest, UnsentCallsFailTheirAgent) {
  agents_.NotSent(plan_);
  agents_.NotSent(plan_);
  EXPECT_EQ(agents_.size(), 0u);
  EXPECT_EQ(agents_.results().failed, 1u);
  EXPECT_EQ(agents_.results().calls_not_sent, 3u);
}

TEST(ScheduleOfAgents, TakesRowsInOrderAndIndicesForAllCalls) {
  const Options options = {.trace = "x", .agents = *ParseAgents("sequence:2,fork_join:3")};
  auto schedule = Schedule::Create(options, {.format = "generic", .requests = Rows(14)});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->total(), 4u) << "14 rows are two agents of each shape";
  uint64_t calls = 0, agents = 0;
  while (auto first = schedule->Next()) {
    ASSERT_NE(first->agent, nullptr);
    EXPECT_EQ(first->agent->agent, agents++);
    for (uint32_t i = 0; i < first->agent->calls.size(); ++i) {
      const PlannedRequest call = CallOf(*first, i);
      EXPECT_EQ(call.index, calls);
      EXPECT_EQ(call.prompt_tokens, 10 * ++calls);
    }
  }
  EXPECT_EQ(agents, 4u);
  EXPECT_EQ(calls, 14u);
}

// The lengths of calls are sent in 32 bits.
TEST(ScheduleOfAgents, RowsOfTooManyTokensAreRefused) {
  Trace trace = {.source = "long.csv", .format = "generic", .requests = Rows(6)};
  trace.requests[3].output_tokens = (int64_t{1} << 30) - 40;
  const auto create = [&](const char* agents) {
    return Schedule::Create({.trace = "x", .agents = *ParseAgents(agents)}, trace).status();
  };
  EXPECT_TRUE(create("sequence:1,cycle:3").ok());
  const absl::Status status = create("sequence:1,cycle:4");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("long.csv: row 4"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("cycle:4"));
}

}  // namespace
}  // namespace bfio::loadgen
