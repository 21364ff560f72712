// Which placement rule is chosen, for traffic on which one of the rules is known to be best.
#include "router/core/choice/rule_chooser.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/baselines/baselines.h"
#include "router/core/policy/bf_io_auto/bf_io_auto.h"

namespace bfio::core {
namespace {

constexpr PlacementRule kAll[] = {PlacementRule::kHeadroom, PlacementRule::kHorizon, PlacementRule::kCounts,
                                  PlacementRule::kRefill};
// The same rules in another order.
constexpr PlacementRule kOthersFirst[] = {PlacementRule::kRefill, PlacementRule::kHorizon,
                                          PlacementRule::kCounts, PlacementRule::kHeadroom};

const std::vector<EndedRequest> kNone;

EndedRequest Request(Lookahead& lookahead, int64_t prompt, int64_t output) {
  EndedRequest request;
  request.resident.prefill_tokens = prompt;
  request.resident.max_new_tokens = request.resident.expected_tokens = 1 << 20;
  request.resident.group = lookahead.GroupOf(0, prompt);
  request.output_tokens = output;
  return request;
}

std::vector<WorkerView> Workers(size_t count, int32_t slots) {
  std::vector<WorkerView> workers(count);
  for (WorkerView& worker : workers) worker.free_slots = slots;
  return workers;
}

double Time(const RuleChooser& chooser, PlacementRule rule) {
  for (const RuleChooser::Candidate& candidate : chooser.candidates()) {
    if (candidate.rule == rule) return candidate.time;
  }
  return 0;
}

// A steady stream of `per_step` requests per step on average, with lengths from `draw`, and a lookahead that
// has learnt these lengths.
class Traffic {
 public:
  using Draw = std::function<std::pair<int64_t, int64_t>(Rng&)>;
  Traffic(uint64_t seed, size_t workers, double per_step, const Draw& draw)
      : workers_(Workers(workers, 72)), rng_(seed), per_step_(per_step) {
    for (int i = 0; i < 4096; ++i) {
      const auto [prompt, output] = draw(rng_);
      const EndedRequest request = Request(*lookahead_, prompt, output);
      ended_.Add(request.resident, output);
      lookahead_->Observe(request.resident, {}, 0, output, true);
      lookahead_->Advance();
    }
  }

  Lookahead& lookahead() { return *lookahead_; }
  const EndedRequests& ended() const { return ended_; }
  const std::vector<WorkerView>& workers() const { return workers_; }

  void Run(RuleChooser& chooser, int64_t steps, double mean_age = 0) {
    for (; steps > 0; --steps) {
      int64_t arrivals = 0;
      for (double left = std::exp(-per_step_); (left /= rng_.Uniform()) < 1;) ++arrivals;
      chooser.Step(*lookahead_, ended_, workers_, arrivals, mean_age);
    }
  }

 private:
  std::vector<WorkerView> workers_;
  Rng rng_;
  double per_step_;
  std::unique_ptr<Lookahead> lookahead_ = *MakeLookahead("survival");
  EndedRequests ended_;
};

// Identical requests: prompts of 512 tokens and outputs of 256; 40 of 72 slots are taken.
Traffic IdenticalRequests(uint64_t seed, size_t workers = 8) {
  return {seed, workers, static_cast<double>(workers) * 40 / 256,
          [](Rng&) { return std::make_pair(512, 256); }};
}
// Traffic of agents: lognormal prompts of about 4,900 tokens, and outputs of about 150.
Traffic LargePrompts(uint64_t seed) {
  return {seed, 16, 16.0 * 40 / 204, [](Rng& rng) {
            const auto of = [&](double log) {
              return static_cast<int64_t>(1 + std::exp(log + 0.8 * rng.Normal()));
            };
            const int64_t prompt = of(8.5);
            return std::make_pair(prompt, of(5));
          }};
}

TEST(ReplayedGroup, RequestsGrowAndLeaveAndWaitForASlot) {
  const auto lookahead = *MakeLookahead("survival");
  for (const PlacementRule rule : kAll) {
    ReplayedGroup two(std::make_unique<BfIoAutoPolicy>(), rule, Workers(2, 4));
    ReplayedGroup one(std::make_unique<BfIoAutoPolicy>(), rule, Workers(1, 1));
    const std::vector<EndedRequest> both = {Request(*lookahead, 100, 2), Request(*lookahead, 10, 1)};
    for (const double load : {100, 101, 0}) EXPECT_EQ(two.Step(*lookahead, load == 100 ? both : kNone), load);
    for (const double load : {100, 101, 10, 0})
      EXPECT_EQ(one.Step(*lookahead, load == 100 ? both : kNone), load);
    two.Begin(Request(*lookahead, 100, 60), 58);
    for (const double load : {158, 159, 0}) EXPECT_EQ(two.Step(*lookahead, {}), load) << "from its middle on";
  }
}

TEST(RuleChooser, FirstRuleIsFollowedUntilRequestsHaveEnded) {
  RuleChooser chooser;
  EXPECT_EQ(chooser.rule(), PlacementRule::kHeadroom);
  chooser.SetRules(absl::MakeConstSpan(kAll).subspan(1, 1));
  EXPECT_FALSE(chooser.chooses());
  EXPECT_EQ(chooser.rule(), PlacementRule::kHorizon);
  chooser.SetRules(kAll);
  const auto lookahead = *MakeLookahead("survival");
  EndedRequests ended;
  const std::vector<WorkerView> workers = Workers(8, 72);
  for (int i = 0; i < 5'000; ++i) chooser.Step(*lookahead, ended, workers, 1, 0);
  EXPECT_EQ(chooser.rule(), PlacementRule::kHeadroom);
  EXPECT_EQ(Time(chooser, PlacementRule::kHeadroom), 0);
}

TEST(RuleChooser, RequestsThatAreAlikeAreNotKeptFromTheLowestWorker) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    RuleChooser chooser;
    chooser.SetRules(kAll);
    IdenticalRequests(seed).Run(chooser, 3'000);
    SCOPED_TRACE(seed);
    EXPECT_NE(chooser.rule(), PlacementRule::kHeadroom);
    EXPECT_LT(Time(chooser, chooser.rule()), 0.99 * Time(chooser, PlacementRule::kHeadroom));
    EXPECT_GE(chooser.switches(), 1);
  }
}

TEST(RuleChooser, HeadroomIsKeptForLargePromptsAndTheChoiceFollowsTheTraffic) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    RuleChooser chooser;
    chooser.SetRules(kOthersFirst);
    LargePrompts(seed).Run(chooser, 5'000);
    EXPECT_EQ(chooser.rule(), PlacementRule::kHeadroom);
    EXPECT_LT(Time(chooser, PlacementRule::kHeadroom), Time(chooser, PlacementRule::kCounts));
    if (seed > 1) continue;
    IdenticalRequests(1).Run(chooser, 6'000);
    EXPECT_NE(chooser.rule(), PlacementRule::kHeadroom);
    LargePrompts(2).Run(chooser, 6'000);
    EXPECT_EQ(chooser.rule(), PlacementRule::kHeadroom);
  }
}

TEST(RuleChooser, WaitsForRequestsThatHaveNotEnded) {
  RuleChooser chooser;
  chooser.SetRules(kAll);
  IdenticalRequests(1).Run(chooser, 3'000, 10'000);
  EXPECT_EQ(chooser.rule(), PlacementRule::kHeadroom) << "those that have ended are the short ones";
}

TEST(RuleChooser, GroupOfAnotherSizeIsReplayedFromTheBeginning) {
  RuleChooser chooser;
  chooser.SetRules(kAll);
  IdenticalRequests(5, 8).Run(chooser, 2'000);
  const PlacementRule rule = chooser.rule();
  IdenticalRequests(6, 300).Run(chooser, 64);
  EXPECT_EQ(chooser.rule(), rule) << "until there is something to go by";
  IdenticalRequests(6, 300).Run(chooser, 1'000);
  EXPECT_NE(chooser.rule(), PlacementRule::kHeadroom);
}

TEST(RuleChooser, ReportsByHowMuchTheChosenRuleLeads) {
  RuleChooser chooser;
  chooser.SetRules(kOthersFirst);
  EXPECT_FALSE(chooser.measured());
  EXPECT_EQ(DescribeChoice(chooser, PlacementRule::kCounts), "refill");
  LargePrompts(7).Run(chooser, 6'000);
  ASSERT_EQ(chooser.rule(), PlacementRule::kHeadroom);
  ASSERT_TRUE(chooser.measured());
  EXPECT_EQ(chooser.StepRatio(PlacementRule::kHeadroom), 1);
  const double ratio = Time(chooser, PlacementRule::kHorizon) / Time(chooser, PlacementRule::kHeadroom);
  EXPECT_EQ(chooser.StepRatio(PlacementRule::kHorizon), ratio);
  EXPECT_GT(ratio, 1);
  const std::string line = DescribeChoice(chooser, PlacementRule::kHorizon);
  EXPECT_THAT(line, ::testing::StartsWith("headroom: its steps are "));
  EXPECT_THAT(line, ::testing::HasSubstr(" % shorter than those of horizon over the last "));
}

// The mean step time of a group that nothing else is replayed with, with one request per step.
double TimeAlone(Traffic& traffic, std::unique_ptr<Policy> policy, PlacementRule rule, int64_t steps) {
  ReplayedGroup group(std::move(policy), rule, traffic.workers());
  const EndedRequests& ended = traffic.ended();
  size_t draw = 0;
  const auto next = [&] { return ended.Last(RuleChooser::kDrawn - 1 - draw++ % RuleChooser::kDrawn); };
  int64_t longest = 0;
  for (size_t i = 0; i < ended.size(); ++i) longest = std::max(longest, ended[i].output_tokens);
  for (int64_t age = longest; age > 0; --age) {
    if (const EndedRequest request = next(); request.output_tokens > age) group.Begin(request, age);
  }
  const double keep = 1 - 1 / (1 + RuleChooser::kMemoryStays * ended.mean_stay());
  double sum = 0, counted = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    // The first step begins the replay, with the requests that are already there.
    std::vector<EndedRequest> arrivals;
    if (step > 1) arrivals.push_back(next());
    const double time = group.Step(traffic.lookahead(), arrivals);
    if (static_cast<double>(step) <= RuleChooser::kSettleStays * ended.mean_stay()) continue;
    sum = keep * sum + time;
    counted = keep * counted + 1;
  }
  return sum / counted;
}

TEST(RuleChooser, WatchedPoliciesAreComparedAndAffectNoRule) {
  // One step before a choice: the times are those of the last choice.
  constexpr int64_t kSteps = 64 * 50 + 63;
  Traffic traffic = LargePrompts(8);
  RuleChooser chooser;
  chooser.SetRules(kAll);
  const auto step = [&] { chooser.Step(traffic.lookahead(), traffic.ended(), traffic.workers(), 1, 0); };
  for (int64_t i = 0; i < kSteps; ++i) step();
  ASSERT_TRUE(chooser.measured());
  const double chosen = TimeAlone(traffic, std::make_unique<BfIoAutoPolicy>(), chooser.rule(), 64 * 50);
  for (const PlacementRule rule : kAll) {
    EXPECT_EQ(Time(chooser, rule), TimeAlone(traffic, std::make_unique<BfIoAutoPolicy>(), rule, 64 * 50));
    EXPECT_GE(Time(chooser, rule), (1 - RuleChooser::kHysteresis) * chosen);
  }
  const auto watched = chooser.watched();
  ASSERT_EQ(watched.size(), 2u);
  EXPECT_EQ(watched[0].policy, "fcfs");
  EXPECT_EQ(chooser.StepRatio(watched[0]), TimeAlone(traffic, Fcfs(), {}, 64 * 50) / chosen);
  EXPECT_EQ(watched[1].policy, "least_requests");
  EXPECT_EQ(chooser.StepRatio(watched[1]), TimeAlone(traffic, LeastRequests(), {}, 64 * 50) / chosen);
  EXPECT_GT(chooser.StepRatio(watched[1]), 1.05);
}

}  // namespace
}  // namespace bfio::core
