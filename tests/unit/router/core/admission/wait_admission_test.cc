// WAIT and Nested WAIT in the router: which requests are released to the pool, and when.
#include "router/core/admission/wait_admission.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/core/admission/admission_text.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::core {
namespace {

using ::testing::HasSubstr;
using Kind = WaitAdmissionOptions::Kind;

constexpr double kFixed = 50'000;
constexpr int64_t kLoad = 50'000;
constexpr int32_t kWorkers = 8;

RequestSpec Spec(RequestId id, int64_t prompt, int64_t output) {
  return {.id = id, .prefill_tokens = prompt, .max_new_tokens = output};
}

// The smallest threshold n for a single type, such that an iteration takes at most 0.9 of the time in which n
// requests arrive.
int64_t WaitThreshold(const RequestType& type) {
  for (int64_t n = 1;; ++n) {
    const double tokens = static_cast<double>(n) * StageTokens(type) / kWorkers;
    if ((kFixed + tokens) * type.rate <= 0.9 * static_cast<double>(n)) return n;
  }
}

// The first threshold of Nested WAIT with two types: each later segment gets 1.1 times the requests that
// reach it, within 0.95 of the time.
double NestedThreshold(const std::vector<RequestType>& types) {
  const Segments segments = SegmentsOf(types);
  for (double n = 1;; n = std::ceil(1.01 * n)) {
    const double second = std::floor(1.1 * segments.survive[1] * n) + 1;
    const double tokens = (n * SegmentTokens(segments, 0) + second * SegmentTokens(segments, 1)) / kWorkers;
    if ((kFixed + tokens) * segments.rate <= 0.95 * n) return n;
  }
}

WaitAdmission Admission(Kind kind, int64_t most = 1'000'000) {
  return WaitAdmission({kind, kFixed, most});
}

// Poisson arrivals of one kind of request, `per_step` of them per step, to a group whose load is kLoad
// tokens.
class Stream {
 public:
  Stream(WaitAdmission& admission, uint64_t seed) : admission_(admission), rng_(seed) {}

  std::vector<WaitAdmission::Waiting> Run(int64_t steps, double per_step, int64_t prompt, int64_t output) {
    std::vector<WaitAdmission::Waiting> released;
    for (int64_t i = 0; i < steps; ++i) {
      for (next_ -= per_step; next_ < 0; next_ += rng_.Exponential())
        admission_.Add(Spec(++id_, prompt, output), step_);
      admission_.OnStep(kLoad, kWorkers);
      admission_.Release(++step_, false, released);
    }
    return released;
  }
  int64_t step() const { return step_; }

 private:
  WaitAdmission& admission_;
  Rng rng_;
  RequestId id_ = 0;
  double next_ = 0;
  int64_t step_ = 0;
};

int64_t Largest(const WaitAdmission& admission) {
  return *std::max_element(admission.thresholds().begin(), admission.thresholds().end());
}

TEST(WaitAdmission, ThresholdsFollowTheCostsThatWorkersHaveFitted) {
  for (const Kind kind : {Kind::kWait, Kind::kNestedWait}) {
    WaitAdmission admission({kind, std::nullopt, 1'000'000});
    EXPECT_EQ(admission.fixed_tokens(), WaitAdmission::kDefaultFixedTokens);
    Stream stream(admission, 1);
    if (kind == Kind::kNestedWait)
      for (int i = 0; i < 50; ++i) admission.OnEnd(100, 200);
    stream.Run(2000, 8, 100, 200);
    const int64_t before = Largest(admission);
    admission.OnCost(4 * WaitAdmission::kDefaultFixedTokens);
    EXPECT_EQ(admission.fixed_tokens(), 4 * WaitAdmission::kDefaultFixedTokens);
    // At the same rate per unit of time, a step with four times the fixed part collects four times as many.
    stream.Run(1, 8, 100, 200);
    const double ratio = static_cast<double>(Largest(admission)) / static_cast<double>(before);
    EXPECT_GT(ratio, 3);
    EXPECT_LT(ratio, 5);
  }
}

TEST(WaitAdmission, ThresholdsHoldNoMoreThanTheWorkersMemory) {
  for (const Kind kind : {Kind::kWait, Kind::kNestedWait}) {
    const auto threshold = [&](std::optional<double> memory) {
      WaitAdmission admission = Admission(kind);
      if (memory) admission.OnMemory(*memory);
      if (kind == Kind::kNestedWait)
        for (int i = 0; i < 50; ++i) admission.OnEnd(100, 200);
      Stream stream(admission, 1);
      stream.Run(2000, 16, 100, 200);
      const int64_t largest = Largest(admission);
      admission.OnMemory(7.5 * StageTokens({1, 100, 199}));
      stream.Run(1, 16, 100, 200);
      EXPECT_EQ(Largest(admission), 7) << "it follows at once";
      return largest;
    };
    const double held = StageTokens({1, 100, 199});
    const int64_t free = threshold(std::nullopt);
    ASSERT_GT(free, 20);
    EXPECT_EQ(threshold(static_cast<double>(free + 1) * held), free);
    EXPECT_EQ(threshold(10.5 * held), 10);
    EXPECT_EQ(threshold(0.5 * held), 1) << "one request may always start";
  }
}

TEST(WaitAdmission, MemoryIsSharedByTheClassesAsTheirRates) {
  WaitAdmission admission = Admission(Kind::kWait);
  const double both = StageTokens({1, 100, 19}) + StageTokens({1, 100, 199});
  admission.OnMemory(12 * both);
  Stream stream(admission, 1);
  for (int i = 0; i < 2000; ++i) {
    stream.Run(1, 30, 100, 20);
    stream.Run(1, 30, 100, 200);
  }
  const int64_t first = admission.thresholds()[WaitAdmission::ClassOf(20)];
  const int64_t second = admission.thresholds()[WaitAdmission::ClassOf(200)];
  EXPECT_NEAR(first, 12, 2);
  EXPECT_NEAR(second, 12, 2);
  EXPECT_LE(first * StageTokens({1, 100, 19}) + second * StageTokens({1, 100, 199}), 12 * both);
}

TEST(ParseAdmission, ParsesAMemoryRuleABatchRuleOrBoth) {
  const auto both = ParseAdmission("kv_feasible:confidence=0.9+nested_wait:tokens=1000,most=7");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->kv.kind, KvAdmissionOptions::Kind::kFeasible);
  EXPECT_EQ(both->kv.confidence, 0.9);
  EXPECT_EQ(both->wait.kind, Kind::kNestedWait);
  EXPECT_EQ(both->wait.fixed_tokens, 1000);
  EXPECT_EQ(both->wait.most_steps, 7);
  EXPECT_EQ(ParseAdmission("wait")->kv.kind, KvAdmissionOptions::Kind::kNone);
  EXPECT_EQ(ParseAdmission("none")->wait.kind, Kind::kNone);
  EXPECT_EQ(ParseAdmission("wait+protection:alpha=0.25")->kv.alpha, 0.25);
  const auto sorted = ParseAdmission("wait+mc_sf:most=9,confidence=0.9");
  ASSERT_TRUE(sorted.ok()) << sorted.status();
  EXPECT_EQ(sorted->kv.kind, KvAdmissionOptions::Kind::kMcSf);
  EXPECT_EQ(sorted->kv.most_steps, 9);
  EXPECT_EQ(sorted->kv.confidence, 0.9);
  EXPECT_EQ(ParseAdmission("mc_sf:error=0.5")->kv.length_error, 0.5);
  for (const char* text : {"",
                           "+",
                           "wait+",
                           "wait+nested_wait",
                           "none+kv_feasible",
                           "waits",
                           "wait:most=0",
                           "wait:most=1.5",
                           "wait:tokens=x",
                           "wait:tokens=nan",
                           "wait:a=1",
                           "kv_feasible:most=3",
                           "kv_feasible:x",
                           "protection",
                           "protection:alpha=",
                           "protection:alpha=1",
                           "protection:alpha=-0.1",
                           "protection:alpha=nan",
                           "mc_sf:",
                           "mc_sf:most=0",
                           "mc_sf:alpha=0",
                           "mc_sf:most=nan",
                           "mc_sf:most=3,",
                           "mc_sf_paced",
                           "mc_sf:error=-0.1",
                           "mc_sf:error=nan",
                           "mc_sf:error=x",
                           "mc_sf:error="}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseAdmission(text).status())) << text;
  }
  for (const char* confidence : {"0", "0.49", "1", "-1", "nan", ""}) {
    EXPECT_THAT(
        std::string(ParseAdmission(absl::StrCat("kv_feasible:confidence=", confidence)).status().message()),
        HasSubstr("confidence of kv_feasible"));
  }
}

TEST(CheckKvAdmission, RulesThatNeedLengthsAreRefusedWithoutThem) {
  const std::tuple<const char*, const char*, bool> kCases[] = {{"kv_feasible", "none", false},
                                                               {"kv_feasible", "survival", true},
                                                               {"protection:alpha=0", "none", true},
                                                               {"mc_sf:error=0.5", "survival", false},
                                                               {"mc_sf:error=0.5", "oracle", true}};
  for (const auto& [rule, lookahead, accepted] : kCases) {
    const absl::Status status = CheckKvAdmission(ParseAdmission(rule)->kv, **MakeLookahead(lookahead));
    EXPECT_EQ(status.ok(), accepted) << rule << ", " << lookahead;
    if (absl::string_view(lookahead) == "none" && !accepted) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("survival"));
    }
  }
}

TEST(WaitAdmission, AClassIsReleasedAtTheFluidModelsThreshold) {
  WaitAdmission admission = Admission(Kind::kWait);
  Stream stream(admission, 1);
  stream.Run(4000, 30, 40, 60);
  // In this model's unit of time a step takes kFixed + kLoad; the group's load is divided among its workers.
  const size_t of = WaitAdmission::ClassOf(60);
  const RequestType type = {30 / (kFixed + kLoad), 40, 59};
  const int64_t exact = WaitThreshold(type);
  EXPECT_GE(exact, 15);
  EXPECT_GE(admission.thresholds()[of], exact);
  // Thresholds are solved for up to four standard errors above the measured rate, which raises them.
  const RequestType above = {1.15 * type.rate, 40, 59};
  EXPECT_LE(admission.thresholds()[of], WaitThreshold(above));
  for (size_t j = 0; j < admission.thresholds().size(); ++j) {
    if (j == of) continue;
    EXPECT_EQ(admission.thresholds()[j], 1) << "no request of class " << j << " has come";
  }

  const int64_t threshold = admission.thresholds()[of];
  std::vector<WaitAdmission::Waiting> out;
  admission.Release(stream.step(), true, out);
  out.clear();
  for (int64_t i = 1; i < threshold; ++i)
    admission.Add(Spec(1'000'000 + static_cast<RequestId>(i), 40, 60), stream.step());
  admission.Release(stream.step(), false, out);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(admission.size(), threshold - 1);
  admission.Add(Spec(2'000'000, 40, 60), stream.step());
  admission.Release(stream.step(), false, out);
  EXPECT_EQ(static_cast<int64_t>(out.size()), threshold);
  EXPECT_EQ(admission.size(), 0);
}

TEST(WaitAdmission, NestedWaitLearnsSegmentsFromEndedRequests) {
  WaitAdmission admission = Admission(Kind::kNestedWait);
  Stream stream(admission, 5);
  // No request has ended, so no lengths are known, and no request waits.
  stream.Run(500, 3, 300, 1000);
  EXPECT_EQ(admission.thresholds(), std::vector<int64_t>{1});
  for (int i = 0; i < 3000; ++i) admission.OnEnd(30, i % 4 == 0 ? 150 : 20);
  stream.Run(4000, 30, 30, 1000);
  const double rate = 30 / (kFixed + kLoad);
  const auto nested = [&](double factor) {
    return NestedThreshold({{0.75 * factor * rate, 30, 19}, {0.25 * factor * rate, 30, 149}});
  };
  EXPECT_GE(nested(1), 15);
  EXPECT_GE(admission.thresholds()[0], 0.97 * nested(1)) << "rounding apart";
  EXPECT_LE(admission.thresholds()[0], nested(1.2));
}

TEST(WaitAdmission, NoRequestIsLostDuplicatedOrKeptBeyondTheBound) {
  for (const Kind kind : {Kind::kWait, Kind::kNestedWait}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      Rng rng(seed);
      const int64_t most = 1 + static_cast<int64_t>(rng.Below(40));
      WaitAdmission admission({kind, 1 + static_cast<double>(rng.Below(100'000)), most});
      std::map<RequestId, int64_t> kept;  // and when they entered
      RequestId id = 0;
      for (int64_t step = 1; step <= 2000; ++step) {
        for (uint64_t n = rng.Below(2 + seed); n > 0; --n) {
          RequestSpec spec = Spec(++id, 1 + static_cast<int64_t>(rng.Below(4000)), 1);
          spec.max_new_tokens = 1 + static_cast<int64_t>(rng.Below(uint64_t{1} << rng.Below(18)));
          if (rng.Below(2) == 0) spec.predicted_output_tokens = 1 + static_cast<int64_t>(rng.Below(300));
          admission.Add(spec, step);
          kept[id] = step;
        }
        if (rng.Below(5) == 0 && !kept.empty()) {
          EXPECT_EQ(admission.Spec(kept.begin()->first).id, kept.begin()->first);
          EXPECT_TRUE(admission.Remove(kept.begin()->first));
          kept.erase(kept.begin());
        }
        if (rng.Below(3) == 0)
          admission.OnEnd(1 + static_cast<int64_t>(rng.Below(4000)),
                          1 + static_cast<int64_t>(rng.Below(uint64_t{1} << rng.Below(18))));
        if (rng.Below(50) != 0)
          admission.OnStep(static_cast<int64_t>(rng.Below(200'000)), static_cast<int32_t>(1 + rng.Below(8)));
        const bool idle = rng.Below(200) == 0;
        std::vector<WaitAdmission::Waiting> out;
        admission.Release(step, idle, out);
        for (const WaitAdmission::Waiting& waiting : out) ASSERT_EQ(kept.erase(waiting.spec.id), 1U);
        ASSERT_EQ(admission.size(), static_cast<int64_t>(kept.size()));
        ASSERT_TRUE(!idle || kept.empty());
        for (const auto& [kept_id, enqueued_step] : kept) {
          ASSERT_TRUE(admission.Contains(kept_id));
          ASSERT_LT(step - enqueued_step, most);
        }
        for (const int64_t threshold : admission.thresholds()) ASSERT_GE(threshold, 1);
      }
    }
  }
}

}  // namespace
}  // namespace bfio::core
