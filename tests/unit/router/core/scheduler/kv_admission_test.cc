// Scheduler and admission with workers that can run out of memory: no request starves, and memory suffices
// when lengths are known.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/core/admission/admission_text.h"
#include "tests/unit/router/core/scheduler/step_group.h"

namespace bfio::core {
namespace {

using bfio::testing::OneGroup;
using bfio::testing::StepGroup;

constexpr int64_t kLongest = 12, kMemory = 200;

// Workers that preempt the youngest request when memory is short.
class KvGroup : public StepGroup {
 public:
  KvGroup(const std::string& policy, const std::string& admission, const std::string& lookahead, int64_t hold,
          uint64_t seed, double watermark = 0)
      : KvGroup(policy, *ParseAdmission(admission), lookahead, hold, Rng(seed), seed, watermark) {}

  RequestId Arrive(int64_t prompt, int64_t output) {
    Enqueue({.id = requests.size() + 1,
             .prefill_tokens = prompt,
             .max_new_tokens = kLongest,
             .predicted_output_tokens = Predicted(output)},
            output);
    return requests.size();
  }
  int64_t Small() { return 5 + static_cast<int64_t>(rng.Below(30)); }
  int64_t Output() { return 1 + static_cast<int64_t>(rng.Below(kLongest)); }
  void ArriveBelow(uint64_t most) {
    for (uint64_t n = rng.Below(most); n > 0; --n) Arrive(Small(), Output());
  }

  void Step() {
    StepGroup::Step();
    EXPECT_EQ(totals().policy_violations, 0);
    for (Run& run : std::exchange(out_, {})) {
      run.spec.predicted_output_tokens = Predicted(run.output - run.made);
      run.spec.priority = 1;
      run.spec.refusals = 0;
      ++preempted[run.spec.id];
      Requeue(run);
    }
  }

  bool Placed(RequestId id) const { return group.WorkerOf(id).has_value() || !group.Knows(id); }
  int64_t Preempted() const {
    int64_t sum = 0;
    for (const auto& [id, times] : preempted) sum += times;
    return sum;
  }

  Rng rng;
  // Predicted lengths are too short by this factor, or have at most this relative error.
  int64_t understated = 1;
  double error = 0;
  // Plans arrive up to this many steps late.
  int64_t most_late = 0;
  // Preemptions and refusals of each request.
  std::map<RequestId, int64_t> preempted, refusals;

 protected:
  bool PlansArrive() override {
    late_ = late_ < most_late && rng.Below(4) == 0 ? late_ + 1 : 0;
    return late_ == 0;
  }
  bool Accepts(size_t g, Run& run) override {
    const bool exempt = run.spec.reserves_kv() || workers[g].runs.empty();
    const double kept = exempt ? 0 : watermark_ * kMemory;
    if (static_cast<double>(kMemory - Held(g) - HeldBy(run)) >= kept) return true;
    ++requests.at(run.spec.id).spec.refusals;
    ++refusals[run.spec.id];
    return false;
  }
  void Compute(size_t g, Done& done) override {
    std::vector<Run>& runs = workers[g].runs;
    while (Held(g) > kMemory) {
      const auto youngest =
          std::find_if(runs.rbegin(), runs.rend(), [](const Run& run) { return !run.spec.reserves_kv(); });
      ASSERT_NE(youngest, runs.rend());
      done.preempted.push_back(youngest->spec.id);
      out_.push_back(*youngest);
      runs.erase(std::next(youngest).base());
    }
    StepGroup::Compute(g, done);
  }

 private:
  KvGroup(const std::string& policy, const AdmissionSetting& setting, const std::string& lookahead,
          int64_t hold, Rng rng, uint64_t seed, double watermark)
      : StepGroup(std::vector(1 + rng.Below(3), WorkerSpec{.slots = 8, .kv_tokens = kMemory}),
                  *MakePolicy(policy, {}),
                  {.wait = setting.wait,
                   .admission = setting.kv,
                   .hold_after_steps = hold,
                   .plan_mode = seed % 2 == 0 ? PlanMode::kLockstep : PlanMode::kPipelined},
                  *MakeLookahead(lookahead)),
        rng(rng),
        watermark_(watermark) {}

  int64_t Predicted(int64_t output) {
    if (error == 0) return std::max<int64_t>(1, output / understated);
    const double factor = 1 / (1 + error * (2 * rng.Uniform() - 1));
    const auto predicted = static_cast<int64_t>(std::round(static_cast<double>(output) * factor));
    // Rounding may move the prediction out of the interval.
    const auto length = static_cast<double>(output), said = static_cast<double>(predicted);
    return std::abs(length - said) > error * said ? output : predicted;
  }
  // Tokens that the requests hold, reservations included.
  static int64_t HeldBy(const Run& run) {
    return run.spec.reserves_kv() ? run.spec.kv_reserve_tokens() : run.load;
  }
  int64_t Held(size_t g) const {
    int64_t held = 0;
    for (const Run& run : workers[g].runs) held += HeldBy(run);
    return held;
  }

  std::vector<Run> out_;
  int64_t late_ = 0;
  // Share of memory that a worker keeps free.
  const double watermark_;
};

// For a while more requests arrive than fit; all of them end.
int64_t PreemptedInABusyHour(KvGroup& group) {
  for (int step = 0; step < 100; ++step) group.ArriveBelow(6), group.Step();
  for (int step = 0; step < 2000 && group.group.waiting() > 0; ++step) group.Step();
  EXPECT_EQ(group.group.waiting(), 0);
  EXPECT_EQ(group.totals().drift_tokens, 0);
  return group.Preempted();
}

struct Subject {
  const char *admission, *lookahead;
  // Lengths are known, or bounded, so that memory suffices.
  bool known = true;
};

class KvAdmission : public ::testing::TestWithParam<Subject> {};
INSTANTIATE_TEST_SUITE_P(Kinds, KvAdmission,
                         ::testing::Values(Subject{"none", "none"}, Subject{"kv_feasible", "oracle"},
                                           Subject{"mc_sf", "oracle"}, Subject{"mc_sf:most=20", "max_tokens"},
                                           Subject{"mc_sf", "survival", false},
                                           Subject{"mc_sf:error=0.25", "oracle"},
                                           Subject{"kv_feasible", "max_tokens"},
                                           Subject{"kv_feasible", "survival", false},
                                           Subject{"protection:alpha=0.1", "none", false},
                                           Subject{"protection:alpha=0", "none", false},
                                           Subject{"protection:alpha=0+nested_wait:most=8", "none", false},
                                           Subject{"kv_feasible+wait:most=8", "oracle"}),
                         [](const auto& param) { return absl::StrCat(param.index); });

// A request that needs a whole worker arrives in an endless stream of small ones that would fill every
// gap.
TEST_P(KvAdmission, NoRequestIsPassedOverForLongerThanTheBound) {
  for (const PolicyInfo& policy : RegisteredPolicies()) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(absl::StrCat(policy.name, ", seed ", seed));
      const int64_t hold = seed % 3 == 0 ? 40 : 5;
      KvGroup group(std::string(policy.name), GetParam().admission, GetParam().lookahead, hold, seed);
      // By number, in order: when requests arrived; the n-th that is placed is the n-th of them where the
      // oldest go first.
      std::vector<int64_t> arrived;
      size_t placed = 0;
      int64_t now = 0, oldest_first = 0;
      const auto step = [&] {
        while (group.group.waiting() < 20) group.Arrive(group.Small(), group.Output());
        arrived.resize(group.requests.size(), now++);
        group.Step();
        for (const Placement& of : group.last.placements) {
          if (!group.preempted.contains(of.id))
            oldest_first = std::max(oldest_first, now - arrived[placed++]);
        }
      };
      for (int i = 0; i < 30; ++i) step();
      const RequestId large = group.Arrive(kMemory - kLongest + 1, group.Output());
      // The worker held for it is empty when its requests have ended; another may have room earlier.
      int64_t waited = 0;
      for (; !group.Placed(large) && waited < 1000; ++waited) step();
      // WAIT delays a request by at most most=8 steps.
      EXPECT_LE(waited, std::max(hold, 2 * oldest_first) + 2 * kLongest + 4);
      EXPECT_EQ(group.totals().drift_tokens, 0);
      if (GetParam().known) {
        EXPECT_EQ(group.Preempted(), 0);
      }
      if (HasFailure()) return;
    }
  }
}

constexpr Subject kKnown[] = {{"kv_feasible", "oracle"},
                              {"kv_feasible", "max_tokens"},
                              {"mc_sf", "oracle"},
                              {"mc_sf:error=0.25", "oracle"},
                              {"mc_sf:most=10", "max_tokens"}};

// When a plan arrives late, its requests run later than the plan states.
TEST(KvAdmissionWithKnownLengths, MemorySufficesWhenPlansAreLate) {
  for (const Subject& known : kKnown) {
    for (uint64_t seed = 1; seed <= 601; seed += 2) {  // pipelined
      SCOPED_TRACE(absl::StrCat(known.admission, ", ", known.lookahead, ", seed ", seed));
      KvGroup group("bf_io_auto", known.admission, known.lookahead, 64, seed);
      group.most_late = 2;
      EXPECT_EQ(PreemptedInABusyHour(group), 0);
    }
  }
}

// Where lengths are not known, workers run out of memory and preempt, and all requests still end. Upper ends
// of predictions within a relative error keep every worker within its memory.
TEST(KvAdmissionWithErrors, PreemptionMendsWhatPredictionsMiss) {
  const struct {
    const char *admission, *lookahead;
    double error;
    int64_t understated;
    uint64_t seeds;
    int64_t least, most;
  } kCases[] = {{"mc_sf:error=0.5", "oracle", 0.5, 1, 100, 0, 0},
                {"mc_sf", "oracle", 0.5, 1, 100, 21, 1 << 20},
                {"kv_feasible", "oracle", 0, 4, 20, 21, 1 << 20},
                {"mc_sf", "oracle", 0, 4, 20, 21, 1 << 20},
                {"protection:alpha=0", "none", 0, 1, 20, 51, 1 << 20}};
  for (const auto& row : kCases) {
    SCOPED_TRACE(absl::StrCat(row.admission, ", ", row.error, ", ", row.understated));
    int64_t preempted = 0;
    for (uint64_t seed = 1; seed <= row.seeds; ++seed) {
      KvGroup group("bf_io_auto", row.admission, row.lookahead, 64, seed);
      group.error = row.error;
      group.understated = row.understated;
      preempted += PreemptedInABusyHour(group);
    }
    EXPECT_GE(preempted, row.least);
    EXPECT_LE(preempted, row.most);
  }
}

// A long request that fits arrives in an endless stream of short ones. From the bound on it starts as soon as
// it fits a worker, after those that arrived before it; in the paper there is none.
TEST(McSfAdmission, ALongRequestIsPassedOverUntilTheBoundAndNoLonger) {
  const std::tuple<const char*, int64_t, int64_t> kCases[] = {{"mc_sf:most=100000", 200, 300},
                                                              {"mc_sf:most=60", 59, 60 + 2 * kLongest}};
  for (const auto& [admission, least, most] : kCases) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      KvGroup group("fcfs", admission, "oracle", 1'000, seed);
      const auto step = [&] {
        while (group.group.waiting() < 40) group.Arrive(group.Small(), 1 + kLongest / 8);
        group.Step();
      };
      for (int i = 0; i < 30; ++i) step();
      const RequestId longest = group.Arrive(group.Small(), kLongest);
      int64_t steps = 0;
      for (; !group.Placed(longest) && steps < 300; ++steps) step();
      EXPECT_GE(steps, least) << admission;
      EXPECT_LE(steps, most) << admission;
      EXPECT_EQ(group.Preempted(), 0);
    }
  }
}

// One worker, driven step by step; its requests end when the test says so.
class OneWorkerGroup : public StepGroup {
 public:
  explicit OneWorkerGroup(const std::string& admission, const std::string& lookahead = "none",
                          int32_t slots = 4, int64_t kv_tokens = 1000)
      : OneWorkerGroup(*ParseAdmission(admission), lookahead, slots, kv_tokens) {}
  void Enqueue(RequestId id, int64_t prompt = 10, int64_t most = 100, uint32_t tenant = 0) {
    StepGroup::Enqueue({.id = id, .prefill_tokens = prompt, .max_new_tokens = most, .tenant = tenant},
                       1 << 20);
  }
  const WaitAdmission& wait() const { return group.cluster().pool().wait_admission(); }
  double Served(uint32_t tenant) const { return group.cluster().pool().service().Served(tenant); }
  int64_t shared = 0;

 protected:
  void Compute(size_t g, Done& done) override {
    StepGroup::Compute(g, done);
    done.report.shared_kv_tokens = shared;
  }

 private:
  OneWorkerGroup(const AdmissionSetting& setting, const std::string& lookahead, int32_t slots, int64_t kv)
      : StepGroup({{.slots = slots, .kv_tokens = kv}}, *MakePolicy("fcfs", {}),
                  {.max_waiting = 6, .wait = setting.wait, .admission = setting.kv, .hold_after_steps = 20},
                  *MakeLookahead(lookahead)) {}
};

TEST(WaitInTheScheduler, OnlyRequestsThatHaveNotBegunAreHeldAndTheyCountAndCanBeCancelled) {
  OneWorkerGroup group("wait:most=1000,tokens=1000000");
  OneGroup& scheduler = group.group;
  group.Enqueue(1);
  ASSERT_EQ(group.Plan(), "1@0") << "an idle group does not wait for others to come";
  group.Step();
  RequestSpec begun = bfio::testing::Request(2);
  begun.generated_tokens = 1;
  group.StepGroup::Enqueue(begun);
  group.Enqueue(3);
  EXPECT_EQ(scheduler.waiting(), 2);
  EXPECT_EQ(group.wait().size(), 1);
  EXPECT_TRUE(group.wait().Contains(3));
  EXPECT_TRUE(absl::IsAlreadyExists(scheduler.Enqueue(bfio::testing::Request(3))));
  for (RequestId id = 4; id <= 7; ++id) group.Enqueue(id);
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler.Enqueue(bfio::testing::Request(8))));
  EXPECT_EQ(scheduler.waiting(), 6);
  EXPECT_EQ(scheduler.Cancel(7), CancelOutcome::kDequeued);
  EXPECT_EQ(scheduler.waiting(), 5);
  EXPECT_FALSE(scheduler.Knows(7));
  EXPECT_EQ(scheduler.Cancel(7), CancelOutcome::kUnknown);
}

TEST(SharedKv, MakesRoomUnderEveryRule) {
  for (const char* admission : {"none", "kv_feasible", "mc_sf", "protection:alpha=0"}) {
    SCOPED_TRACE(admission);
    OneWorkerGroup group(admission, "max_tokens");
    for (RequestId id = 1; id <= 4; ++id) group.Enqueue(id, 400, 50);
    ASSERT_EQ(group.Plan(), "1@0 2@0") << "of 1,000 tokens";
    group.Step(2);
    EXPECT_EQ(group.Plan(), "");
    group.shared = 399;
    group.Step();
    ASSERT_EQ(group.Plan(), "3@0") << "two of the three share 399 of 400 tokens";
    group.shared = 0;
    group.Step();
    EXPECT_EQ(group.Plan(), "");
  }
}

TEST(PreemptedRequest, KeepsItsAgeAndPaysItsPromptOnce) {
  OneWorkerGroup group("protection:alpha=0");
  for (RequestId id = 1; id <= 2; ++id) group.Enqueue(id, 400, 600, 7);
  ASSERT_EQ(group.Plan(), "1@0 2@0");
  group.Step();
  const double paid = group.Served(7);
  EXPECT_EQ(paid, 800 * TenantService::kPromptWeight);
  // It is preempted before its first token, after 30 steps in the pool.
  group.Preempt(2);
  group.Step();
  group.requests[2].spec.waited_steps = 30;
  group.Requeue(group.requests[2]);
  const absl::Span<const WaitingView> views = group.group.cluster().pool().views().views();
  ASSERT_EQ(views.size(), 1U);
  EXPECT_EQ(group.group.NextStep() - views[0].enqueued_step, 30);
  group.End(1);
  for (int i = 0; i < 3 && group.group.waiting() > 0; ++i) group.Step();
  EXPECT_EQ(group.group.waiting(), 0);
  ASSERT_EQ(group.last.placements.size(), 1U);
  EXPECT_EQ(group.last.placements[0].id, 2U);
  EXPECT_GE(group.last.placements[0].wait_steps, 30);
  EXPECT_LT(group.Served(7) - paid, 100) << "some tokens, but no prompt";
}

// A worker that keeps half of its memory free and is never empty would never admit a request of nearly half.
TEST(KvAdmissionWithoutForesight, ARequestRefusedTooOftenReservesAndStarts) {
  int64_t most_refusals = 0;
  for (const char* admission : {"protection:alpha=0", "kv_feasible"}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      KvGroup group("bf_io_auto", admission, "max_tokens", 64, seed, /*watermark=*/0.5);
      for (int step = 0; step < 30; ++step) {
        for (int n = 0; n < 3; ++n) group.Arrive(group.Small(), kLongest);
        group.Step();
      }
      const RequestId large = group.Arrive(95, kLongest);
      // It starts while others keep arriving.
      for (int step = 0; step < 400; ++step) {
        for (int n = 0; n < 3; ++n) group.Arrive(group.Small(), kLongest);
        group.Step();
      }
      EXPECT_TRUE(!group.group.Knows(large))
          << admission << ", seed " << seed << ": refused " << group.refusals[large] << " times";
      if (group.refusals[large] >= RequestSpec::kRefusalsBeforeReserving) {
        EXPECT_EQ(group.preempted[large], 0);
      }
      most_refusals = std::max(most_refusals, group.refusals[large]);
    }
  }
  EXPECT_EQ(most_refusals, RequestSpec::kRefusalsBeforeReserving);
}

TEST(McSfAdmission, BeginsTheShortestFirstAndStopsAtTheFirstThatDoesNotFit) {
  OneWorkerGroup group("mc_sf", "max_tokens");
  // Tokens at their ends: 499, 349, 799, 209.
  group.Enqueue(1, 300, 200), group.Enqueue(2, 200, 150), group.Enqueue(3, 700, 100),
      group.Enqueue(4, 10, 200);
  // Request 3 is first; request 2 holds 200 + 99 when 3 holds all its 799. No request passes 2.
  EXPECT_EQ(group.Plan(), "3@0");
}

}  // namespace
}  // namespace bfio::core
