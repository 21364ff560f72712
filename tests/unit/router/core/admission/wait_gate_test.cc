// WAIT and Nested WAIT in the router: when which requests are released from the gate to the pool.
#include "router/core/admission/wait_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "router/core/admission/admission_text.h"

namespace bfio::core {
namespace {

using ::testing::HasSubstr;
using Kind = WaitGateOptions::Kind;

constexpr double kFixed = 50'000;
constexpr int64_t kLoad = 50'000;
constexpr int32_t kWorkers = 8;

RequestSpec Spec(RequestId id, int64_t prompt, int64_t output) {
  RequestSpec spec;
  spec.id = id;
  spec.prefill_tokens = prompt;
  spec.max_new_tokens = output;
  return spec;
}

// The smallest threshold of a single type with which an iteration takes at most 0.9 of the time in which as
// many arrive.
int64_t WaitThreshold(const RequestType& type) {
  for (int64_t n = 1;; ++n) {
    const double tokens = static_cast<double>(n) * StageTokens(type) / kWorkers;
    if ((kFixed + tokens) * type.rate <= 0.9 * static_cast<double>(n)) return n;
  }
}

// The first threshold of Nested WAIT with two types: each segment's 1.1 times what reaches it, a share of
// 0.95 of the time.
double NestedThreshold(const std::vector<RequestType>& types) {
  const Segments segments = SegmentsOf(types);
  for (double n = 1;; n = std::ceil(1.01 * n)) {
    const double second = std::floor(1.1 * segments.survive[1] * n) + 1;
    const double tokens = (n * SegmentTokens(segments, 0) + second * SegmentTokens(segments, 1)) / kWorkers;
    if ((kFixed + tokens) * segments.rate <= 0.95 * n) return n;
  }
}

WaitGate Gate(Kind kind, int64_t most = 1'000'000) {
  return WaitGate({kind, kFixed, most});
}

// Poisson arrivals of one kind of request, `per_step` of them per step, to a group whose load is kLoad
// tokens.
class Stream {
 public:
  Stream(WaitGate& gate, uint64_t seed) : gate_(gate), rng_(seed) {}

  std::vector<WaitGate::Waiting> Run(int64_t steps, double per_step, int64_t prompt, int64_t output) {
    std::vector<WaitGate::Waiting> released;
    for (int64_t i = 0; i < steps; ++i) {
      for (next_ -= per_step; next_ < 0; next_ += rng_.Exponential())
        gate_.Add(Spec(++id_, prompt, output), step_);
      gate_.OnStep(kLoad, kWorkers);
      gate_.Release(++step_, false, released);
    }
    return released;
  }
  int64_t step() const { return step_; }
  RequestId last_id() const { return id_; }

 private:
  WaitGate& gate_;
  Rng rng_;
  RequestId id_ = 0;
  double next_ = 0;
  int64_t step_ = 0;
};

int64_t Largest(const WaitGate& gate) {
  return *std::max_element(gate.thresholds().begin(), gate.thresholds().end());
}

TEST(WaitGate, ArrivalsBeforeTheFirstStepAreNotARate) {
  for (const Kind kind : {Kind::kWait, Kind::kNestedWait}) {
    WaitGate gate = Gate(kind);
    std::vector<WaitGate::Waiting> released;
    for (RequestId id = 1; id <= 5000; ++id) gate.Add(Spec(1'000'000 + id, 100, 100), 0);
    gate.Release(0, /*idle=*/true, released);
    EXPECT_EQ(released.size(), 5000U);
    Stream stream(gate, 1);
    stream.Run(50, 0.2, 100, 100);
    for (const int64_t threshold : gate.thresholds()) EXPECT_LT(threshold, 5);
  }
}

TEST(WaitGate, ThresholdsFollowTheCostsThatWorkersHaveFitted) {
  for (const Kind kind : {Kind::kWait, Kind::kNestedWait}) {
    WaitGate gate({kind, std::nullopt, 1'000'000});
    EXPECT_EQ(gate.fixed_tokens(), WaitGate::kDefaultFixedTokens);
    Stream stream(gate, 1);
    if (kind == Kind::kNestedWait)
      for (int i = 0; i < 50; ++i) gate.OnEnd(100, 200);
    stream.Run(2000, 8, 100, 200);
    const int64_t before = Largest(gate);
    gate.OnCost(4 * WaitGate::kDefaultFixedTokens);
    EXPECT_EQ(gate.fixed_tokens(), 4 * WaitGate::kDefaultFixedTokens);
    // At the same rate per unit of time, a step with four times the fixed part collects four times as many.
    stream.Run(1, 8, 100, 200);
    const double ratio = static_cast<double>(Largest(gate)) / static_cast<double>(before);
    EXPECT_GT(ratio, 3);
    EXPECT_LT(ratio, 5);
  }
}

TEST(WaitGate, SmallChangesOfCostsChangeNothing) {
  WaitGate gate({Kind::kWait, std::nullopt, 32});
  gate.OnCost(100'000);
  for (const double cost : {109'000.0, 91'000.0, 100'000.0, 109'900.0}) {
    gate.OnCost(cost);
    EXPECT_EQ(gate.fixed_tokens(), 100'000);
  }
  gate.OnCost(111'000);
  EXPECT_EQ(gate.fixed_tokens(), 111'000);
  gate.OnCost(-5);
  EXPECT_EQ(gate.fixed_tokens(), 1) << "a fit may extrapolate to less than nothing";
}

TEST(WaitGate, AnExplicitSettingOverridesWorkersCosts) {
  WaitGate gate({Kind::kWait, 30'000, 32});
  gate.OnCost(90'000);
  EXPECT_EQ(gate.fixed_tokens(), 30'000);
}

TEST(ArrivalRate, ItsTimeConstantChangesWithoutAJumpOfTheRate) {
  ArrivalRate rate(100);
  for (int i = 1; i <= 1000; ++i) rate.OnArrival(i);
  const double before = rate.Rate(1000.5);
  rate.SetTimeConstant(20, 1000.5);
  EXPECT_NEAR(rate.Rate(1000.5), before, 1e-12);
  // From now on it follows five times as fast: without arrivals, e^-1 after 20.
  EXPECT_NEAR(rate.Rate(1020.5) / before, std::exp(-1), 1e-6);
}

TEST(ParseAdmission, ParsesAMemoryRuleABatchRuleOrBoth) {
  const auto both = ParseAdmission("kv_feasible:confidence=0.9+nested_wait:tokens=1000,most=7");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->kv.kind, KvGateOptions::Kind::kFeasible);
  EXPECT_EQ(both->kv.confidence, 0.9);
  EXPECT_EQ(both->wait.kind, Kind::kNestedWait);
  EXPECT_EQ(both->wait.fixed_tokens, 1000);
  EXPECT_EQ(both->wait.most_steps, 7);
  EXPECT_EQ(ParseAdmission("wait")->kv.kind, KvGateOptions::Kind::kNone);
  EXPECT_EQ(ParseAdmission("wait+protection:alpha=0.1")->kv.alpha, 0.1);
  const auto sorted = ParseAdmission("wait+mc_sf:most=9,confidence=0.9");
  ASSERT_TRUE(sorted.ok()) << sorted.status();
  EXPECT_EQ(sorted->kv.kind, KvGateOptions::Kind::kMcSf);
  EXPECT_EQ(sorted->kv.most_steps, 9);
  EXPECT_EQ(sorted->kv.confidence, 0.9);
  EXPECT_EQ(ParseAdmission("none")->wait.kind, Kind::kNone);
  for (const char* text :
       {"", "+", "wait+", "wait+nested_wait", "none+kv_feasible", "waits", "wait:most=0", "wait:most=1.5",
        "wait:tokens=x", "wait:tokens=nan", "wait:a=1", "kv_feasible:most=3", "mc_sf:", "mc_sf:most=0",
        "mc_sf:alpha=0", "mc_sf:most=nan", "mc_sf:most=3,", "mc_sf_paced"}) {
    EXPECT_EQ(ParseAdmission(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(WaitGate, AClassIsReleasedAtTheFluidModelsThreshold) {
  WaitGate gate = Gate(Kind::kWait);
  Stream stream(gate, 1);
  stream.Run(4000, 30, 40, 60);
  // In this model's unit of time a step takes kFixed + kLoad; the group's load is divided among its workers.
  const size_t of = WaitGate::ClassOf(60);
  const RequestType type = {30 / (kFixed + kLoad), 40, 59};
  const int64_t exact = WaitThreshold(type);
  EXPECT_GE(exact, 15);
  EXPECT_GE(gate.thresholds()[of], exact);
  // Thresholds are solved for up to four standard errors above the measured rate, which raises them.
  const RequestType above = {1.15 * type.rate, 40, 59};
  EXPECT_LE(gate.thresholds()[of], WaitThreshold(above));
  for (size_t j = 0; j < gate.thresholds().size(); ++j) {
    if (j == of) continue;
    EXPECT_EQ(gate.thresholds()[j], 1) << "no request of class " << j << " has come";
  }

  const int64_t threshold = gate.thresholds()[of];
  std::vector<WaitGate::Waiting> out;
  gate.Release(stream.step(), true, out);
  out.clear();
  for (int64_t i = 1; i < threshold; ++i)
    gate.Add(Spec(1'000'000 + static_cast<RequestId>(i), 40, 60), stream.step());
  gate.Release(stream.step(), false, out);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(gate.size(), threshold - 1);
  gate.Add(Spec(2'000'000, 40, 60), stream.step());
  gate.Release(stream.step(), false, out);
  EXPECT_EQ(static_cast<int64_t>(out.size()), threshold);
  EXPECT_EQ(gate.size(), 0);
}

TEST(WaitGate, ThresholdsFollowRatesUpAndDown) {
  for (const Kind kind : {Kind::kWait, Kind::kNestedWait}) {
    WaitGate gate = Gate(kind);
    Stream stream(gate, 3);
    const size_t of = kind == Kind::kWait ? WaitGate::ClassOf(100) : 0;
    for (int i = 0; i < 1000; ++i) gate.OnEnd(400, 100);
    stream.Run(4000, 4, 400, 100);
    const int64_t many = gate.thresholds()[of];
    stream.Run(4000, 1, 400, 100);
    const int64_t few = gate.thresholds()[of];
    stream.Run(4000, 4, 400, 100);
    EXPECT_GE(many, 2 * few);
    EXPECT_GE(gate.thresholds()[of], 2 * few);
  }
}

TEST(WaitGate, NestedWaitLearnsSegmentsFromEndedRequests) {
  WaitGate gate = Gate(Kind::kNestedWait);
  Stream stream(gate, 5);
  // No request has ended, so no lengths are known, and no request waits.
  stream.Run(500, 3, 300, 1000);
  EXPECT_EQ(gate.thresholds(), std::vector<int64_t>{1});
  for (int i = 0; i < 3000; ++i) gate.OnEnd(30, i % 4 == 0 ? 150 : 20);
  stream.Run(4000, 30, 30, 1000);
  const double rate = 30 / (kFixed + kLoad);
  const auto nested = [&](double factor) {
    return NestedThreshold({{0.75 * factor * rate, 30, 19}, {0.25 * factor * rate, 30, 149}});
  };
  EXPECT_GE(nested(1), 15);
  EXPECT_GE(gate.thresholds()[0], 0.97 * nested(1)) << "rounding apart";
  EXPECT_LE(gate.thresholds()[0], nested(1.2));
}

TEST(WaitGate, ARareClassNeitherWaitsNorDelaysOthers) {
  WaitGate gate = Gate(Kind::kWait);
  Stream stream(gate, 11);
  stream.Run(3000, 30, 40, 60);
  const int64_t before = gate.thresholds()[WaitGate::ClassOf(60)];
  gate.Add(Spec(9'000'000, 40, 2'000), stream.step());
  stream.Run(600, 30, 40, 60);
  EXPECT_EQ(gate.thresholds()[WaitGate::ClassOf(2'000)], 1);
  EXPECT_LE(gate.thresholds()[WaitGate::ClassOf(60)], before + before / 4);
}

TEST(WaitGate, AnInfeasibleLoadStillHasThresholds) {
  for (const Kind kind : {Kind::kWait, Kind::kNestedWait}) {
    WaitGate gate = Gate(kind);
    Stream stream(gate, 7);
    for (int i = 0; i < 1000; ++i) gate.OnEnd(2000, 1000);
    const auto released = stream.Run(3000, 50, 2000, 1000);
    EXPECT_GE(released.size(), 1000U);
    EXPECT_GT(*std::max_element(gate.thresholds().begin(), gate.thresholds().end()), 1);
  }
}

TEST(WaitGate, NoRequestIsLostDuplicatedOrKeptBeyondTheBound) {
  for (const Kind kind : {Kind::kWait, Kind::kNestedWait}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      Rng rng(seed);
      const int64_t most = 1 + static_cast<int64_t>(rng.Below(40));
      WaitGate gate({kind, 1 + static_cast<double>(rng.Below(100'000)), most});
      std::set<RequestId> kept;
      RequestId id = 0;
      for (int64_t step = 1; step <= 2000; ++step) {
        for (uint64_t n = rng.Below(2 + seed); n > 0; --n) {
          RequestSpec spec = Spec(++id, 1 + static_cast<int64_t>(rng.Below(4000)), 1);
          spec.max_new_tokens = 1 + static_cast<int64_t>(rng.Below(uint64_t{1} << rng.Below(18)));
          if (rng.Below(2) == 0) spec.predicted_output_tokens = 1 + static_cast<int64_t>(rng.Below(300));
          gate.Add(spec, step);
          kept.insert(id);
        }
        if (rng.Below(5) == 0 && !kept.empty()) {
          EXPECT_EQ(gate.Spec(*kept.begin()).id, *kept.begin());
          EXPECT_TRUE(gate.Remove(*kept.begin()));
          kept.erase(kept.begin());
        }
        if (rng.Below(3) == 0)
          gate.OnEnd(1 + static_cast<int64_t>(rng.Below(4000)),
                     1 + static_cast<int64_t>(rng.Below(uint64_t{1} << rng.Below(18))));
        if (rng.Below(50) != 0)
          gate.OnStep(static_cast<int64_t>(rng.Below(200'000)), static_cast<int32_t>(1 + rng.Below(8)));
        const bool idle = rng.Below(200) == 0;
        std::vector<WaitGate::Waiting> out;
        gate.Release(step, idle, out);
        for (const WaitGate::Waiting& waiting : out) ASSERT_EQ(kept.erase(waiting.spec.id), 1U);
        ASSERT_EQ(gate.size(), static_cast<int64_t>(kept.size()));
        ASSERT_EQ(gate.All().size(), kept.size());
        ASSERT_TRUE(!idle || kept.empty());
        for (const WaitGate::Waiting& waiting : gate.All()) {
          ASSERT_TRUE(gate.Contains(waiting.spec.id));
          ASSERT_LT(step - waiting.enqueued_step, most);
        }
        for (const int64_t threshold : gate.thresholds()) ASSERT_GE(threshold, 1);
      }
    }
  }
}

}  // namespace
}  // namespace bfio::core
