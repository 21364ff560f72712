#include "tools/loadgen/agents.h"

#include <set>

#include "gmock/gmock.h"
#include "tools/loadgen/options.h"
#include "tools/loadgen/schedule.h"

namespace bfio::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rows with prompts of 10, 20, ... tokens and outputs of 1, 2, ... tokens.
std::vector<TraceRequest> Rows(size_t n) {
  std::vector<TraceRequest> rows;
  for (size_t i = 1; i <= n; ++i) {
    TraceRequest row = {.prompt_tokens = 10 * static_cast<int64_t>(i),
                        .output_tokens = static_cast<int64_t>(i)};
    rows.push_back(row);
  }
  return rows;
}

TEST(ParseAgents, ParsesShapesAndNamesErrors) {
  const auto shapes = ParseAgents("sequence:4,fork_join:3,cycle:5");
  ASSERT_TRUE(shapes.ok()) << shapes.status();
  ASSERT_EQ(shapes->size(), 3u);
  EXPECT_EQ(AgentsText(*shapes), "sequence:4,fork_join:3,cycle:5");
  EXPECT_EQ((*shapes)[2].calls(), 5u);
  EXPECT_EQ((*shapes)[0].calls(), 4u);
  EXPECT_EQ((*shapes)[1].calls(), 5u);
  for (const char* bad : {"", "sequence", "sequence:", "sequence:0", "sequence:1001", "sequence:-1", "tree:3",
                          "sequence:3,,fork_join:2", "fork_join:2x"}) {
    EXPECT_EQ(ParseAgents(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(std::string(ParseAgents("tree:3").status().message()), HasSubstr("tree:3"));
}

TEST(PlanAgent, ForkJoinHasStagesAndTheLongestRemainingPath) {
  const AgentPlan plan = *PlanAgent({AgentShape::kForkJoin, 3}, Rows(5));
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
  const AgentPlan plan = *PlanAgent({AgentShape::kCycle, 4}, Rows(4)), alone = *PlanAgent({}, Rows(1));
  uint32_t said = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.calls[i].prompt_tokens, said + 10 * (i + 1));
    said = plan.calls[i].prompt_tokens + plan.calls[i].output_tokens;
    EXPECT_EQ(plan.calls[i].stage, i);
    EXPECT_EQ(plan.calls[i].waits_for, i > 0 ? 1u : 0u);
  }
  EXPECT_EQ(plan.calls[0].remaining_tokens, 2u + 3u + 4u);
  EXPECT_EQ(plan.calls[0].prompt_tokens, alone.calls[0].prompt_tokens);
}

TEST(AgentsUnderWay, CallsAreSentWhenTheirPredecessorsHaveEnded) {
  const AgentPlan plan = *PlanAgent({AgentShape::kForkJoin, 2}, Rows(4));
  AgentsUnderWay agents;
  agents.Begin(plan, 1.0);
  EXPECT_THAT(agents.OnEnded(plan, 0, true, 2.0), ElementsAre(1, 2));
  EXPECT_THAT(agents.OnEnded(plan, 2, true, 3.0), IsEmpty());
  EXPECT_THAT(agents.OnEnded(plan, 1, true, 4.0), ElementsAre(3));
  EXPECT_EQ(agents.size(), 1u);
  EXPECT_THAT(agents.OnEnded(plan, 3, true, 6.0), IsEmpty());
  EXPECT_EQ(agents.size(), 0u);
  EXPECT_EQ(agents.results().completed, 1u);
  EXPECT_EQ(agents.results().e2e_s.max(), 5.0);
}

TEST(AgentsUnderWay, AFailedCallEndsItsAgentWhenTheOthersHaveEnded) {
  const AgentPlan plan = *PlanAgent({AgentShape::kForkJoin, 2}, Rows(4));
  AgentsUnderWay agents;
  agents.Begin(plan, 0);
  agents.OnEnded(plan, 0, true, 1);
  EXPECT_THAT(agents.OnEnded(plan, 1, false, 2), IsEmpty());
  EXPECT_EQ(agents.results().failed, 0u) << "a call is still under way";
  EXPECT_THAT(agents.OnEnded(plan, 2, true, 3), IsEmpty());
  EXPECT_EQ(agents.results().failed, 1u);
  EXPECT_EQ(agents.results().completed, 0u);
  EXPECT_EQ(agents.results().calls_not_sent, 1u);
  EXPECT_EQ(agents.results().e2e_s.count(), 0u);
}

TEST(AgentsUnderWay, UnsentCallsFailTheirAgent) {
  const AgentPlan plan = *PlanAgent({AgentShape::kSequence, 3}, Rows(3));
  AgentsUnderWay agents;
  agents.Begin(plan, 0);
  EXPECT_THAT(agents.OnEnded(plan, 0, true, 1), ElementsAre(1));
  agents.NotSent(plan);
  EXPECT_EQ(agents.size(), 0u);
  EXPECT_EQ(agents.results().failed, 1u);
  EXPECT_EQ(agents.results().calls_not_sent, 2u);
}

TEST(ScheduleOfAgents, TakesRowsInOrderAndIndicesForAllCalls) {
  Trace trace = {.format = "generic", .requests = Rows(14)};
  const Options options = {.trace = "x", .agents = *ParseAgents("sequence:2,fork_join:3")};
  auto schedule = Schedule::Create(options, trace);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->total(), 4u) << "14 rows are two agents of each shape";
  std::set<uint64_t> indices;
  std::vector<uint32_t> prompts;
  uint64_t agents = 0;
  while (auto first = schedule->Next()) {
    ASSERT_NE(first->agent, nullptr);
    EXPECT_EQ(first->agent->agent, agents++);
    for (uint32_t i = 0; i < first->agent->calls.size(); ++i) {
      const PlannedRequest call = CallOf(*first, i);
      EXPECT_TRUE(indices.insert(call.index).second) << call.index;
      prompts.push_back(call.prompt_tokens);
    }
  }
  EXPECT_EQ(agents, 4u);
  ASSERT_EQ(prompts.size(), 14u);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(prompts[i], 10 * (i + 1));
}

// The lengths of calls are sent in 32 bits.
TEST(ScheduleOfAgents, ACycleOfTooManyTokensIsRefusedByItsRow) {
  Trace trace = {.source = "long.csv", .format = "generic", .requests = Rows(6)};
  trace.requests[1].prompt_tokens = trace.requests[2].output_tokens = 2'147'483'647;
  const auto create = [&](const char* agents, uint32_t count) {
    Options options = {.trace = "x", .agents = *ParseAgents(agents), .requests = count};
    if (count == 0) options.duration_s = 1;
    return Schedule::Create(options, trace).status();
  };
  EXPECT_TRUE(create("sequence:6,fork_join:4", 4).ok()) << "only a cycle adds up prompts";
  EXPECT_TRUE(create("cycle:2", 3).ok()) << "the two rows belong to different agents";
  EXPECT_TRUE(create("cycle:3", 2).ok()) << "no call follows the second of them";
  EXPECT_TRUE(create("sequence:1,cycle:5", 1).ok()) << "the cycle is not sent";
  const absl::Status status = create("sequence:1,cycle:5", 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("long.csv: row 4"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("cycle:5"));
  // The fourth cycle takes the first four rows. Without a number of agents it will be sent.
  EXPECT_TRUE(create("sequence:3,cycle:4", 6).ok());
  EXPECT_EQ(create("sequence:3,cycle:4", 0).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ScheduleOfAgents, TooManyRemainingTokensAreRefusedByTheirRow) {
  Trace trace = {.source = "long.csv", .format = "generic", .requests = Rows(5)};
  for (const size_t row : {2, 3, 4}) trace.requests[row].output_tokens = 2'147'483'647;
  const Options options = {.trace = "x", .agents = *ParseAgents("sequence:5"), .requests = 1};
  const absl::Status status = Schedule::Create(options, trace).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("long.csv: row 2"));
  trace.requests[3].output_tokens = trace.requests[4].output_tokens = 1;
  EXPECT_TRUE(Schedule::Create(options, trace).ok());
}

TEST(OptionsOfAgents, AreRefusedWithChangingRates) {
  Options options = {
      .arrival = "ramp", .rate = 1, .rate_to = 2, .agents = *ParseAgents("sequence:2"), .duration_s = 1};
  EXPECT_THAT(std::string(Validate(options).message()), HasSubstr("--agents"));
  options = {.arrival = "poisson", .rate = 1, .agents = *ParseAgents("sequence:2")};
  EXPECT_TRUE(Validate(options).ok()) << Validate(options);
}

}  // namespace
}  // namespace bfio::loadgen
