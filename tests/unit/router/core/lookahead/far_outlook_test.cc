// Expected loads at steps far apart, against sums over the residents.
#include "router/core/lookahead/far_outlook.h"

#include <gmock/gmock.h>

#include <memory>
#include <vector>

#include "common/base/rng.h"
#include "router/core/lookahead/fixed_length.h"
#include "router/core/lookahead/survival_model.h"

namespace bfio::core {
namespace {

constexpr size_t kKnots = FarOutlookBuilder::kKnots;

// Lengths are geometric and nothing has been observed, so all ages have the same
// future.
std::unique_ptr<Lookahead> Geometric() {
  return *MakeLookahead("survival", {.prior_mean_tokens = 256});
}
double Survives(int64_t steps) {
  static const std::unique_ptr<Lookahead> lookahead = Geometric();
  WaitingView request = {.max_new_tokens = 1 << 20};
  double alive[2];
  lookahead->Lifetime(request, {0, steps}, alive);
  return alive[1];
}

// A resident that has generated `age` tokens when step `plan_step` begins.
Resident Of(Lookahead& lookahead, int64_t prompt, int64_t age, int64_t plan_step) {
  return {.first_step = plan_step - age,
          .prefill_tokens = prompt,
          .max_new_tokens = 1 << 20,
          .group = lookahead.GroupOf(0, prompt)};
}

TEST(FarOutlook, StepsGrowByAFactorUpToThreeMeanStays) {
  const auto lookahead = Geometric();
  const std::vector<Resident> residents = {Of(*lookahead, 10, 1'000, 5'000)};
  FarOutlookBuilder builder;
  for (int i = 0; i < 2; ++i) {
    builder.Begin(1);
    builder.AddWorker(*lookahead, {residents, {4'999, 5'000}});
  }
  const FarOutlook far = builder.View();
  EXPECT_EQ(far.mean_stay, 1'000);
  ASSERT_EQ(far.steps.size(), kKnots);
  EXPECT_EQ(far.steps[0], 0);
  EXPECT_EQ(far.steps[1], 1);
  EXPECT_NEAR(static_cast<double>(far.steps.back()), 3'000, 3);
  for (size_t k = 2; k < kKnots; ++k) {
    EXPECT_GT(far.steps[k], far.steps[k - 1]);
    EXPECT_LE(far.steps[k], 2 * far.steps[k - 1]);
  }
}

TEST(FarOutlook, LoadVarianceAndArrivalsAreSumsOverTheResidents) {
  const auto lookahead = Geometric();
  Rng rng(3);
  std::vector<std::vector<Resident>> workers(3);
  for (std::vector<Resident>& residents : workers) {
    for (int i = 0; i < 20; ++i)
      residents.push_back(Of(*lookahead, static_cast<int64_t>(1 + rng.Below(500)),
                             static_cast<int64_t>(rng.Below(400)), 1'000));
  }
  FarOutlookBuilder builder;
  builder.Begin(3);
  for (const auto& residents : workers) builder.AddWorker(*lookahead, {residents, {999, 1'000}, 0, 2});
  const FarOutlook far = builder.View();
  std::vector<double> variance(kKnots), arriving(kKnots);
  for (size_t g = 0; g < 3; ++g) {
    for (size_t k = 0; k < kKnots; ++k) {
      const int64_t h = far.steps[k];
      double load = 0;
      for (const Resident& resident : workers[g]) {
        const int64_t age = 1'000 - resident.first_step;
        const auto now = static_cast<double>(resident.prefill_tokens + age),
                   then = now + static_cast<double>(h);
        load += Survives(h) * then;
        variance[k] += Survives(h) * (1 - Survives(h)) * then * then / 3;
        if (age < h) variance[k] += now * now / 3;
        if (age < h) arriving[k] += now / 3;
      }
      EXPECT_NEAR(far.load[g * kKnots + k], 2 * load, 1e-6 * load) << "twice: the scale";
    }
  }
  for (size_t k = 0; k < kKnots; ++k) {
    EXPECT_NEAR(far.variance[k], variance[k], 1e-6 * variance[k] + 1e-9);
    EXPECT_NEAR(far.arriving[k], arriving[k], 1e-9 * arriving[k]);
  }
}

TEST(FarOutlook, UnchangedWorkersGrowAndChangedOnesAreSummedAgain) {
  const auto lookahead = Geometric();
  std::vector<Resident> residents = {Of(*lookahead, 100, 50, 1'001), Of(*lookahead, 300, 60, 1'001)};
  FarOutlookBuilder builder;
  for (int i = 0; i < 2; ++i) {  // the second build uses the known stay
    builder.Begin(1);
    builder.AddWorker(*lookahead, {residents, {1'000, 1'001}, 7});
  }
  const double before = builder.View().load[0];
  residents.pop_back();
  builder.Begin(1);
  builder.AddWorker(*lookahead, {residents, {1'002, 1'003}, 7});
  EXPECT_EQ(builder.View().load[0], before + 2 * 2) << "the version says that nothing has changed";
  builder.Begin(1);
  builder.AddWorker(*lookahead, {residents, {1'002, 1'003}, 8});
  EXPECT_EQ(builder.View().load[0], 152);
  residents.front().prefill_tokens = 101;
  builder.Begin(1);
  builder.AddWorker(*lookahead, {residents, {1'007, 1'008}, 8});
  EXPECT_EQ(builder.View().load[0], 158) << "step 1,008: summed again in any case";
}

// The probabilities of the requests with these limits and predictions; and which of them share a curve.
FarOutlook Waiting(FarOutlookBuilder& builder, Lookahead& lookahead,
                   const std::vector<std::pair<int64_t, int64_t>>& lengths) {
  std::vector<WaitingView> waiting;
  for (const auto& [most, predicted] : lengths) {
    waiting.push_back({.prefill_tokens = 100, .max_new_tokens = most});
    if (predicted > 0) waiting.back().predicted_output_tokens = predicted;
  }
  builder.Begin(0);
  builder.AddWaiting(lookahead, waiting);
  return builder.View();
}

TEST(FarOutlook, RequestsOfOneKindShareACurve) {
  const auto lookahead = Geometric();
  FarOutlookBuilder builder;
  const FarOutlook far = Waiting(builder, *lookahead, {{1 << 20, 0}, {5, 0}, {1 << 20, 0}});
  EXPECT_THAT(far.curve_of, ::testing::ElementsAre(0, 1, 0));
  for (size_t k = 0; k < kKnots; ++k) {
    EXPECT_NEAR(far.curves[k], Survives(far.steps[k]), 1e-6);
    EXPECT_NEAR(far.curves[kKnots + k], far.steps[k] < 5 ? Survives(far.steps[k]) : 0, 1e-6);
  }
}

TEST(FarOutlook, EveryRequestStaysForItsOwnTime) {
  FixedLengthLookahead lookahead(FixedLengthLookahead::Kind::kOracle);
  FarOutlookBuilder builder;
  const FarOutlook far = Waiting(builder, lookahead, {{1'000, 100}, {80, 100}, {1'000, 350}});
  const int64_t stays[] = {100, 80, 350};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t k = 0; k < kKnots; ++k)
      EXPECT_EQ(far.curves[static_cast<size_t>(far.curve_of[i]) * kKnots + k],
                far.steps[k] < stays[i] ? 1 : 0)
          << i << " at " << far.steps[k];
  }
}

}  // namespace
}  // namespace bfio::core
