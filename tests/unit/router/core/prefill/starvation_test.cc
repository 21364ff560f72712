// Groups in a loop of arrivals, plans and steps, whatever the measurements of the traffic say: no prompt
// starves, no step is longer than its level, and no rank is given more than it can take. The bounds are those
// of prefill_planner.h, in steps.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <limits>
#include <vector>

#include "common/base/rng.h"
#include "common/cost/prompt_work.h"
#include "gtest/gtest.h"
#include "router/core/prefill/prefill_planner.h"
#include "tests/unit/router/core/prefill/prefill_case.h"

namespace bfio::core::starvation_test {
namespace {

constexpr double kMostRise = 2, kHeldSteps = 2, kHeldTimes = 16;

struct TestRequest {
  int64_t tokens = 0, output = 0, arrived = 0;
  double due_s = kNoObjective;
};

// What a rank still has to compute.
struct Queued {
  TestRequest request;
  PromptLeft left;
  int64_t bound_at = 0;
  // The last step by which it has to be computed.
  double latest = 0;
};

struct TestRank {
  struct Decode {
    int64_t context = 0, left = 0;
  };

  BatchCost cost;
  int64_t slots = 0;
  std::vector<Decode> decodes;
  std::deque<Queued> queue;

  int64_t free_slots() const { return slots - std::ssize(decodes) - std::ssize(queue); }
  int64_t queued_tokens() const {
    int64_t tokens = 0;
    for (const Queued& queued : queue) tokens += queued.left.left;
    return tokens;
  }
  // As planners see it, without objectives.
  PrefillRank View() const {
    PrefillRank view = {.cost = cost, .decodes = std::ssize(decodes), .free_slots = free_slots()};
    for (const Decode& decode : decodes) view.decode_context += static_cast<double>(decode.context);
    for (const Queued& queued : queue) view.prompts.push_back(queued.left);
    return view;
  }

  // Runs a step with this many prompt tokens; returns its duration by the cost model.
  double Step(int64_t tokens, int64_t now) {
    BatchLoad load;
    for (const Decode& decode : decodes) load.AddDecode(decode.context);
    for (Decode& decode : decodes) {
      ++decode.context;
      --decode.left;
    }
    std::erase_if(decodes, [](const Decode& decode) { return decode.left == 0; });
    while (tokens > 0 && !queue.empty()) {
      Queued& first = queue.front();
      const int64_t chunk = std::min(tokens, first.left.left);
      load.AddPrefill(chunk, first.left.done);
      first.left.left -= chunk;
      first.left.done += chunk;
      tokens -= chunk;
      if (first.left.left > 0) break;
      EXPECT_LE(static_cast<double>(now), first.latest) << "of " << first.request.tokens << " tokens";
      if (first.request.output > 1) decodes.push_back({first.request.tokens + 1, first.request.output - 1});
      queue.pop_front();
    }
    return cost.Seconds(load);
  }
};

class LoopTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBudget = 256;
  // Requests arrive until this step.
  static constexpr int64_t kArrivalSteps = 300;

  void Make(uint64_t seed) {
    rng_ = Rng(seed);
    ranks_.clear();
    pool_.clear();
    now_ = 0;
    mean_tokens_ = 10 + static_cast<double>(rng_.Below(1500));
    for (uint64_t g = 1 + rng_.Below(5); g > 0; --g) {
      TestRank& rank = ranks_.emplace_back();
      rank.cost.c_s = 0.005 + 0.02 * rng_.Uniform();
      rank.cost.a_s_per_token = 2e-5 * (1 + rng_.Uniform());
      rank.cost.b0_tokens = rng_.Below(2) == 0 ? 0 : static_cast<int64_t>(rng_.Below(200));
      constexpr double kAttention[] = {0, 1e-8, 1e-7};
      rank.cost.k1_s_per_pair = kAttention[rng_.Below(3)] * rng_.Uniform();
      rank.cost.k2_s_per_token = 1e-6 * rng_.Uniform();
      rank.slots = 1 + static_cast<int64_t>(rng_.Below(30));
      // One request in four decodes without end, so its rank's decodes become ever slower.
      for (uint64_t i = rng_.Below(static_cast<uint64_t>(rank.slots)); i > 0; --i) {
        const int64_t left =
            rng_.Below(4) == 0 ? int64_t{1} << 40 : 1 + static_cast<int64_t>(rng_.Below(500));
        rank.decodes.push_back({static_cast<int64_t>(rng_.Below(3000)), left});
      }
    }
    traffic_ = {};
    // Between 0.01 and 1,000 prompts per second.
    traffic_.arrivals_per_s = std::pow(10, -2 + 5 * rng_.Uniform());
    traffic_.mean_prompt_tokens = mean_tokens_;
    traffic_.mean_prefill_s = mean_tokens_ * 3e-5;
    traffic_.mean_output_tokens = 1 + static_cast<double>(rng_.Below(500));
    traffic_.step_s = 0.01 + 0.05 * rng_.Uniform();
    traffic_.lag_steps = static_cast<int32_t>(rng_.Below(2));
    terms_ = {.padded = rng_.Below(2) == 0,
              .captured_rows = 32 << rng_.Below(5),
              .prompt_s = rng_.Below(2) == 0 ? 0 : 0.01 * rng_.Uniform(),
              .eager_s = rng_.Below(2) == 0 ? 0 : 0.01 * rng_.Uniform()};
    // Requests arrive in bursts; this is the largest.
    burst_ = 1 + rng_.Below(10);
  }

  void Arrive() {
    if (now_ >= kArrivalSteps || rng_.Below(10) != 0) return;
    for (uint64_t i = rng_.Below(burst_ + 1); i > 0; --i) {
      TestRequest request;
      // One in ten may be much longer.
      const double most = mean_tokens_ * (rng_.Below(10) == 0 ? 10 : 1.2);
      request.tokens = 1 + static_cast<int64_t>(most * rng_.Uniform());
      request.output = 1 + static_cast<int64_t>(rng_.Below(100));
      request.arrived = now_;
      if (rng_.Below(4) == 0) request.due_s = 2 * rng_.Uniform();
      pool_.push_back(request);
    }
  }

  double Age(const TestRequest& request) const {
    return static_cast<double>(now_ - request.arrived) * traffic_.step_s;
  }
  std::vector<WaitingPrompt> Waiting() const {
    std::vector<WaitingPrompt> waiting;
    for (const TestRequest& request : pool_) {
      waiting.push_back({request.tokens, Age(request), request.due_s - Age(request)});
    }
    return waiting;
  }
  std::vector<PrefillRank> Ranks() const {
    std::vector<PrefillRank> ranks;
    for (const TestRank& from : ranks_) {
      PrefillRank& rank = ranks.emplace_back(from.View());
      for (const Queued& queued : from.queue)
        rank.due_s.push_back(queued.request.due_s - Age(queued.request));
      if (!from.queue.empty()) {
        rank.first_bound_for_s = static_cast<double>(now_ - from.queue.front().bound_at) * traffic_.step_s;
      }
    }
    return ranks;
  }

  int64_t FreeSlots() const {
    int64_t slots = 0;
    for (const TestRank& rank : ranks_) slots += rank.free_slots();
    return slots;
  }

  // Binds requests of the pool. `latest`: steps within which the last request of a rank must be computed.
  template <class Latest>
  void Bind(const std::vector<PrefillDecision::Binding>& bindings, const Latest& latest) {
    std::vector<bool> bound(pool_.size());
    for (const auto& [index, g] : bindings) {
      ASSERT_TRUE(index >= 0 && index < std::ssize(pool_) && g >= 0 && g < std::ssize(ranks_));
      ASSERT_FALSE(bound[index]) << "bound twice";
      bound[index] = true;
      TestRank& rank = ranks_[g];
      ASSERT_GT(rank.free_slots(), 0) << "more than the rank has slots for";
      rank.queue.push_back({pool_[index], {pool_[index].tokens, 0}, now_, 0});
      rank.queue.back().latest = static_cast<double>(now_) + latest(rank);
    }
    std::vector<TestRequest> left;
    for (size_t i = 0; i < pool_.size(); ++i) {
      if (!bound[i]) left.push_back(pool_[i]);
    }
    pool_ = std::move(left);
  }

  bool Done() const {
    return now_ >= kArrivalSteps && pool_.empty() &&
           std::all_of(ranks_.begin(), ranks_.end(), [](const TestRank& rank) { return rank.queue.empty(); });
  }

  // Steps after which a prompt is overdue.
  double HeldAtMost(const TestRequest& request) const {
    double most_s = 0;
    for (const TestRank& rank : ranks_) {
      most_s = std::max(most_s, WholePromptSeconds(rank.cost, {request.tokens, 0}, 0));
    }
    return kHeldSteps + kHeldTimes * (most_s + terms_.prompt_s) / traffic_.step_s;
  }
  // Steps within which the last prompt of a rank's queue is computed: until the prompts are overdue, and then
  // a mean prompt's tokens, or the largest rise, in every step. The first end with a partial step.
  double MostSteps(const TestRank& rank) const {
    double held = 0, work = 0;
    for (const Queued& queued : rank.queue) {
      held = std::max(held, HeldAtMost(queued.request));
      const double takes_s = WholePromptSeconds(rank.cost, queued.left, 0);
      work += std::max(static_cast<double>(queued.left.left) / mean_tokens_,
                       takes_s / (kMostRise * traffic_.mean_prefill_s));
    }
    return rank.queue.empty() ? 0 : held + work + 2 * static_cast<double>(rank.queue.size());
  }

  Rng rng_{0};
  std::vector<TestRank> ranks_;
  // In order of arrival.
  std::vector<TestRequest> pool_;
  PrefillTraffic traffic_;
  GroupTerms terms_;
  double mean_tokens_ = 0;
  uint64_t burst_ = 0;
  int64_t now_ = 0;
};

class LevelLoopTest : public LoopTest {
 protected:
  void Run() {
    int64_t idle_since = 0, idle_until = 0;
    for (; !Done(); ++now_) {
      ASSERT_LT(now_, 1'000'000) << "a prompt starves";
      Arrive();
      const bool slots_short = std::ssize(pool_) > FreeSlots();
      const std::vector<TestRequest> before = pool_;
      const PrefillDecision decision = PlanPrefill(Ranks(), Waiting(), traffic_, terms_, {});
      CheckOrder(decision, slots_short);
      Bind(decision.bindings, [&](const TestRank& rank) { return MostSteps(rank); });
      if (HasFailure()) return;
      // With a free slot, a waiting prompt must leave the pool once ranks have computed their own prompts.
      if (pool_.empty() || FreeSlots() == 0 || !decision.bindings.empty()) {
        idle_since = now_;
        double most = 0;
        for (const TestRank& rank : ranks_) most = std::max(most, MostSteps(rank));
        double slots = kHeldTimes;
        for (const TestRank& rank : ranks_) slots += static_cast<double>(rank.slots);
        // Where slots are short, it may wait for as long as it delays all decodes.
        for (const TestRequest& request : pool_) {
          most = std::max(most, HeldAtMost(request) * slots / kHeldTimes);
        }
        idle_until = now_ + static_cast<int64_t>(std::ceil(most + traffic_.mean_output_tokens)) + 2;
      }
      ASSERT_LE(now_, idle_until) << "no prompt has left the pool since step " << idle_since;
      waited_ += idle_since < now_ ? 1 : 0;
      Step(decision.level_s);
      if (HasFailure()) return;
    }
  }

  // No request is passed over by a less urgent one or, when slots are short, by a younger one.
  void CheckOrder(const PrefillDecision& decision, bool slots_short) const {
    std::vector<bool> bound(pool_.size());
    for (const auto& binding : decision.bindings) bound[binding.waiting] = true;
    const auto urgency = [&](const TestRequest& request) {
      if (slots_short) return Age(request);
      return (Age(request) + traffic_.step_s) / std::sqrt(static_cast<double>(request.tokens));
    };
    double least_bound = std::numeric_limits<double>::infinity(), most_left = 0;
    for (size_t i = 0; i < pool_.size(); ++i) {
      if (bound[i]) least_bound = std::min(least_bound, urgency(pool_[i]));
      if (!bound[i]) most_left = std::max(most_left, urgency(pool_[i]));
    }
    EXPECT_GE(least_bound, most_left);
  }

  void Step(double level_s) {
    const double least_s = SlowestWithoutPrompts(Ranks());
    if (least_s == 0) {
      EXPECT_TRUE(std::isinf(level_s)) << "nobody decodes";
    } else {
      EXPECT_LE(level_s, least_s + kMostRise * std::max(least_s, traffic_.mean_prefill_s) + 1e-12);
    }
    for (TestRank& rank : ranks_) {
      const PrefillRank view = rank.View();
      const int64_t tokens = TokensWithin(WorkOf(view), level_s);
      EXPECT_GE(tokens, 0);
      EXPECT_LE(tokens, rank.queued_tokens()) << "more than the rank has";
      const double took_s = rank.Step(tokens, now_);
      EXPECT_TRUE(tokens == 0 || took_s <= level_s + 1e-9) << "decodes wait for longer than the level";
      raised_ += level_s > least_s && tokens > 0 ? 1 : 0;
    }
  }

  int64_t waited_ = 0, raised_ = 0;
};

TEST_F(LevelLoopTest, NoPromptStarvesAndNoDecodeWaitsBeyondTheLevel) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Make(seed);
    Run();
    if (HasFailure()) return;
  }
  EXPECT_GT(waited_, 1000);
  EXPECT_GT(raised_, 1000);
}

class ReleaseLoopTest : public LoopTest {
 protected:
  static int64_t CapacityOf(const TestRank& rank) {
    return std::max<int64_t>(1, kBudget - std::ssize(rank.decodes));
  }
  // An upper bound of the time that a step of prompts and this prompt add to decodes.
  double MostHeight(const TestRequest& request) const {
    double most_s = 0;
    const auto tokens = static_cast<double>(request.tokens), budget = static_cast<double>(kBudget);
    for (const TestRank& rank : ranks_) {
      most_s =
          std::max(most_s, rank.cost.a_s_per_token * (budget + tokens) +
                               rank.cost.k1_s_per_pair * (10 * mean_tokens_ * budget + tokens * tokens / 2));
    }
    // Each rank has at most 30 decodes.
    const double steps = std::ceil((budget + tokens) / (budget - 30));
    return most_s + steps * (terms_.prompt_s + terms_.eager_s);
  }

  void Run() {
    for (; !Done(); ++now_) {
      ASSERT_LT(now_, 1'000'000) << "a prompt starves";
      Arrive();
      const int64_t slots = FreeSlots();
      std::vector<TestRequest> overdue;
      for (size_t i = 0; i < pool_.size() && std::cmp_less_equal(pool_.size(), slots); ++i) {
        const double most_s = kHeldSteps * traffic_.step_s + kHeldTimes * MostHeight(pool_[i]);
        if (Age(pool_[i]) > most_s) overdue.push_back(pool_[i]);
      }
      const std::vector<PrefillDecision::Binding> bindings =
          PlanRelease(Ranks(), Waiting(), traffic_, {.step_tokens = kBudget}, terms_);
      Bind(bindings, [](const TestRank& rank) {
        // The rank has at most as many decodes as slots.
        const auto least = static_cast<double>(std::max<int64_t>(1, kBudget - rank.slots));
        return std::ceil(static_cast<double>(rank.queued_tokens()) / least);
      });
      if (HasFailure()) return;
      CheckReleased(overdue);
      for (TestRank& rank : ranks_) rank.Step(CapacityOf(rank), now_);
      if (HasFailure()) return;
    }
  }

  void CheckReleased(const std::vector<TestRequest>& overdue) {
    for (const TestRequest& request : overdue) {
      ++overdue_;
      const bool left = std::any_of(pool_.begin(), pool_.end(), [&](const TestRequest& other) {
        return other.arrived == request.arrived && other.tokens == request.tokens &&
               other.output == request.output;
      });
      if (!left) continue;
      ++behind_;
      for (const TestRank& rank : ranks_) {
        if (rank.free_slots() == 0) continue;
        EXPECT_GE(rank.queued_tokens(), CapacityOf(rank))
            << "has room for " << request.tokens << " tokens that came at step " << request.arrived;
      }
    }
  }

  int64_t overdue_ = 0, behind_ = 0;
};

TEST_F(ReleaseLoopTest, NoPromptIsHeldForLongOrComputedLate) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Make(seed);
    Run();
    if (HasFailure()) return;
  }
  EXPECT_GT(overdue_, 100);
  EXPECT_GT(behind_, 50);
}

}  // namespace
}  // namespace bfio::core::starvation_test
