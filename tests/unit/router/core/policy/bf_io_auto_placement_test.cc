// Placement under bf_io_auto while there are slots for all: every placement of the rules headroom and horizon
// against the formulas of their headers, evaluated directly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/bf_io_auto/headroom.h"
#include "router/core/policy/bf_io_auto/horizon.h"
#include "tests/testing/policy_case.h"

namespace bfio::core {
namespace {

// A group and its outlook; owns the data that a snapshot refers to.
struct Group {
  std::vector<int64_t> steps;
  std::vector<WorkerView> workers;
  std::vector<double> load, variance, arriving, curves;
  std::vector<int32_t> curve_of;
  std::vector<WaitingView> waiting;
  double mean_stay = 1;
  PlacementRule rule = PlacementRule::kHorizon;
  // kRefill: by knot, the mean time with the load that arrives, before any placement.
  std::vector<double> level;

  FarOutlook Far() const { return {steps, load, variance, arriving, curve_of, curves, mean_stay}; }
  Snapshot View() const { return {.workers = workers, .waiting = waiting, .rule = rule, .far = Far()}; }
  void Worker(const std::vector<double>& expected, int32_t free_slots = 100) {
    WorkerView& view = workers.emplace_back();
    view.load_tokens = static_cast<int64_t>(expected[0]);
    view.free_slots = free_slots;
    view.free_kv_tokens = kAmpleKv;
    load.insert(load.end(), expected.begin(), expected.end());
  }
  void Waits(int64_t prompt, const std::vector<double>& stays) {
    WaitingView& view = waiting.emplace_back();
    view.prefill_tokens = view.kv_reserve_tokens = prompt;
    curve_of.push_back(static_cast<int32_t>(curve_of.size()));
    curves.insert(curves.end(), stays.begin(), stays.end());
  }
};

// Between 2 and `most` workers, some with unequal speeds or little memory, and eight requests of any length.
Group Random(uint64_t seed, uint64_t most = 20) {
  Rng rng(seed);
  Group group = {.steps = {0, 1, 5, 40, 300, 2000}, .mean_stay = 1 + 1000 * rng.Uniform()};
  const bool unequal = rng.Below(2) == 0, small = rng.Below(4) == 0;
  for (uint64_t g = 2 + rng.Below(most - 1); g > 0; --g) {
    std::vector<double> expected = {std::floor(20'000 * rng.Uniform())};
    while (expected.size() < group.steps.size()) expected.push_back(expected.back() * 1.2 * rng.Uniform());
    group.Worker(expected, static_cast<int32_t>(rng.Below(8)));
    group.workers.back().active = static_cast<int32_t>(rng.Below(50));
    if (small) group.workers.back().free_kv_tokens = static_cast<int64_t>(rng.Below(30'000));
    if (!unequal) continue;
    group.workers.back().time_per_token = 0.5 + rng.Uniform();
    group.workers.back().time_offset = 1000 * rng.Uniform();
  }
  for (size_t k = 0; k < group.steps.size(); ++k) {
    group.variance.push_back(k == 0 ? 0 : 1e6 * rng.Uniform());
    group.arriving.push_back(k == 0 ? 0 : 1e4 * rng.Uniform());
  }
  for (int i = 0; i < 8; ++i) {
    std::vector<double> stays = {1};
    while (stays.size() < group.steps.size()) stays.push_back(stays.back() * rng.Uniform());
    group.Waits(static_cast<int64_t>(1 + rng.Below(rng.Below(2) == 0 ? 30'000 : 800)), stays);
  }
  if (seed % 2 == 1) return group;
  group.rule = PlacementRule::kRefill;
  for (size_t k = 0; k < group.steps.size(); ++k) {
    double sum = 0;
    for (size_t g = 0; g < group.workers.size(); ++g) {
      const WorkerView& worker = group.workers[g];
      sum +=
          worker.TimeAt(group.load[g * group.steps.size() + k]) + worker.time_per_token * group.arriving[k];
    }
    group.level.push_back(sum / static_cast<double>(group.workers.size()));
  }
  return group;
}

// Follows a plan in its order: the largest first, each where `check` finds it right, until one fits nowhere.
template <class Place, class Check>
void Follow(const Group& group, const Place& place, const Check& check) {
  const Snapshot snapshot = group.View();
  FreeCapacity free, left;
  free.Reset(snapshot);
  left.Reset(snapshot);
  Decision decision;
  const bool all = place(snapshot, free, decision);
  std::vector<WaitingView> unplaced(snapshot.waiting.begin(), snapshot.waiting.end());
  const auto smaller = [](const WaitingView& a, const WaitingView& b) {
    return a.prefill_tokens < b.prefill_tokens;
  };
  for (const auto& [index, worker] : decision.assignments) {
    const WaitingView& request = snapshot.waiting[static_cast<size_t>(index)];
    const auto largest = std::max_element(unplaced.begin(), unplaced.end(), smaller);
    ASSERT_EQ(request.prefill_tokens, largest->prefill_tokens);
    ASSERT_TRUE(left.Fits(request, worker));
    check(left, static_cast<size_t>(index), worker);
    left.Take(request, worker);
    unplaced.erase(largest);
  }
  ASSERT_EQ(all, unplaced.empty());
  ASSERT_TRUE(all || !left.FitsSomewhere(*std::max_element(unplaced.begin(), unplaced.end(), smaller)));
}

// --- headroom ---

class HeadroomTest : public ::testing::Test {
 protected:
  // Requests that wait together, are all new, and are still there in the next two decisions.
  void Show(const std::vector<int64_t>& prefills) {
    std::vector<WaitingView> waiting;
    for (const int64_t prefill : prefills) {
      waiting.push_back({.id = ++last_id_, .prefill_tokens = prefill});
      recent_.push_back(static_cast<double>(prefill));
      if (recent_.size() > 4'000) recent_.pop_front();
    }
    for (int i = 0; i < 3; ++i) headroom_.Observe({.waiting = waiting});
  }
  static double TimeOf(const WorkerView& worker, double growth) {
    return worker.Time() + worker.time_per_token * growth * worker.active;
  }
  // What the header minimises, once this worker has the request. The next request goes where this one fits.
  double Cost(FreeCapacity free, const WaitingView& request, WorkerIndex on, double growth) const {
    const FreeCapacity before = free;
    free.Take(request, on);
    double largest = 0, smallest = HUGE_VAL, rate = 0, grows = 0;
    for (WorkerIndex g = 0; g < free.workers(); ++g) {
      largest = std::max(largest, TimeOf(free[g], growth));
      if (before.Fits(request, g)) smallest = std::min(smallest, TimeOf(free[g], growth));
      rate += free[g].time_per_token / free.workers();
      grows += free[g].time_per_token * growth / free.workers();
    }
    double next = 0;
    for (const double tokens : recent_) next += std::max(largest, smallest + rate * tokens + grows);
    return largest + (recent_.empty() ? 0 : 0.1 * next / static_cast<double>(recent_.size()));
  }

  Headroom headroom_;
  std::deque<double> recent_;
  RequestId last_id_ = 0;
};

TEST_F(HeadroomTest, EachGoesToTheLowestOrToTheLowestAboveThoseKeptLowWhicheverCostsLess) {
  int64_t lowest = 0, above = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    headroom_ = {};
    recent_.clear();
    // None, few, more than are inserted one by one, or more than are remembered; the large ones first.
    constexpr size_t kShown[] = {0, 30, 1'000, 6'000};
    const size_t shown = kShown[rng.Below(4)];
    std::vector<int64_t> prefills;
    for (size_t i = 0; i < shown; ++i)
      prefills.push_back(
          1 + static_cast<int64_t>(rng.Below(i < shown / 10 || rng.Below(50) == 0 ? 20'000 : 500)));
    for (size_t i = 0; i < shown;) {
      const size_t end = std::min(shown, i + 1 + rng.Below(rng.Below(4) == 0 ? 3'000 : 100));
      Show({prefills.begin() + static_cast<int64_t>(i), prefills.begin() + static_cast<int64_t>(end)});
      i = end;
    }
    const Group group = Random(seed, 60);
    const double growth = rng.Below(2) == 0 ? 0 : 500 * rng.Uniform();
    const auto place = [&](const Snapshot& snapshot, FreeCapacity& free, Decision& decision) {
      return headroom_.Place(snapshot, growth, {}, free, decision);
    };
    Follow(group, place, [&](const FreeCapacity& left, size_t i, WorkerIndex worker) {
      const WaitingView& request = group.waiting[i];
      std::vector<std::pair<double, WorkerIndex>> fits;
      for (WorkerIndex g = 0; g < left.workers(); ++g)
        if (left.Fits(request, g)) fits.push_back({TimeOf(left[g], growth), g});
      std::sort(fits.begin(), fits.end());
      const size_t low = std::max<size_t>(1, static_cast<size_t>(0.06 * left.workers()));
      const WorkerIndex other = fits[std::min(low, fits.size() - 1)].second;
      ++(worker == fits[0].second ? lowest : above);
      ASSERT_TRUE(worker == fits[0].second || worker == other);
      const double cost = Cost(left, request, worker, growth);
      ASSERT_LE(cost, Cost(left, request, fits[0].second, growth) + 1e-9 * cost);
      ASSERT_LE(cost, Cost(left, request, other, growth) + 1e-9 * cost);
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(lowest, 300);
  EXPECT_GT(above, 300);
}

TEST_F(HeadroomTest, ExpectedGrowthIsHalfTheRemainingTokensByTheirShare) {
  const PolicyCase none = PolicyCase().Worker(0, 5);
  EXPECT_EQ(headroom_.ExpectedGrowth(none.View(), 0), 0) << "nothing was seen";
  Show(std::vector<int64_t>(10, 100));
  EXPECT_EQ(headroom_.ExpectedGrowth(none.View(), 600), 0) << "no request is there";
  // Residents of 1,100 tokens on average have generated 1,000 of them.
  const PolicyCase group =
      PolicyCase().Worker(9'000, 5, kAmpleKv, /*active=*/9).Worker(2'000, 5, kAmpleKv, /*active=*/1);
  EXPECT_DOUBLE_EQ(headroom_.ExpectedGrowth(group.View(), 0), 0.5 * 1'000 * 1'000 / 1'100);
  EXPECT_DOUBLE_EQ(headroom_.ExpectedGrowth(group.View(), 600), 0.5 * 500 * 500 / 600)
      << "the mean output is 500";
  EXPECT_DOUBLE_EQ(headroom_.ExpectedGrowth(group.View(), 9'000), 0.5 * 1'000 * 1'000 / 1'100);
  EXPECT_EQ(headroom_.ExpectedGrowth(group.View(), 90), 0)
      << "completed requests were shorter than prompts are";
}

// --- horizon ---

// The sum over the steps ahead, with the term for arrivals by kRefill; a knot stands for the steps nearer to
// it than to its neighbours, by ratio.
double ValueOf(const Group& group) {
  const size_t workers = group.workers.size(), knots = group.steps.size();
  double value = 0, rate = 0, begin = 0;
  for (const WorkerView& worker : group.workers) rate += worker.time_per_token / static_cast<double>(workers);
  const double spread = std::sqrt(2 * std::log(static_cast<double>(workers)));
  for (size_t k = 0; k < knots; ++k) {
    const auto here = static_cast<double>(group.steps[k]);
    double end = HUGE_VAL;
    if (k + 1 < knots) end = std::max(here + 0.5, std::sqrt(here * static_cast<double>(group.steps[k + 1])));
    const double r = group.mean_stay, weight = r * (std::exp(-begin / r) - std::exp(-end / r));
    const double tau = rate * std::max(1.0, std::sqrt(group.variance[k]) / spread);
    double largest = 0, sum = 0;
    const auto time = [&](size_t g) { return group.workers[g].TimeAt(group.load[g * knots + k]); };
    for (size_t g = 0; g < workers; ++g) largest = std::max(largest, time(g));
    for (size_t g = 0; g < workers; ++g) sum += std::exp((time(g) - largest) / tau);
    if (!group.level.empty()) {
      sum += static_cast<double>(workers) * std::exp((group.level[k] - largest) / tau);
    }
    value += weight * (largest + tau * std::log(sum));
    begin = end;
  }
  return value;
}

ExpectedSteps::Request RequestOf(const Group& group, size_t i) {
  ExpectedSteps::Request request;
  const size_t knots = group.steps.size();
  const auto prompt = static_cast<double>(group.waiting[i].prefill_tokens);
  for (size_t k = 0; k < knots; ++k) {
    const double stays = group.curves[static_cast<size_t>(group.curve_of[i]) * knots + k];
    request.push_back(stays * (prompt + static_cast<double>(group.steps[k])));
  }
  return request;
}

// The same group with request i placed on worker g.
Group With(Group group, size_t i, WorkerIndex g) {
  const ExpectedSteps::Request request = RequestOf(group, i);
  const size_t knots = group.steps.size();
  for (size_t k = 0; k < knots; ++k) group.load[static_cast<size_t>(g) * knots + k] += request[k];
  return group;
}

TEST(Horizon, RaiseIsWhatTheSumGrowsByAndAddedRequestsCountAsIfTheyHadBeenThere) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Group group = Random(seed);
    ExpectedSteps steps;
    steps.Reset(group.workers, group.Far(), group.rule == PlacementRule::kRefill);
    for (size_t i = 0; i < group.waiting.size(); ++i) {
      const double before = ValueOf(group);
      ASSERT_NEAR(steps.Value(), before, 1e-9 * before) << "seed " << seed;
      const ExpectedSteps::Request request = RequestOf(group, i);
      steps.Open(request);
      for (WorkerIndex g = 0; g < static_cast<WorkerIndex>(group.workers.size()); ++g) {
        const double raise = steps.Raise(g);
        ASSERT_NEAR(raise, ValueOf(With(group, i, g)) - before, 1e-9 * before) << "seed " << seed;
        ASSERT_GE(raise, 0);
      }
      const auto g = static_cast<WorkerIndex>(i % group.workers.size());
      steps.Add(g);
      group = With(group, i, g);
    }
  }
}

TEST(Horizon, EachGoesWhereTheSumGrowsLeast) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Group group = Random(seed);
    Horizon horizon;
    const auto place = [&](const Snapshot& snapshot, FreeCapacity& free, Decision& decision) {
      return horizon.Place(snapshot, {}, free, decision);
    };
    const Group before = group;
    Follow(before, place, [&](const FreeCapacity& left, size_t i, WorkerIndex worker) {
      double least = HUGE_VAL;
      for (WorkerIndex g = 0; g < left.workers(); ++g)
        if (left.Fits(group.waiting[i], g)) least = std::min(least, ValueOf(With(group, i, g)));
      group = With(group, i, worker);
      ASSERT_NEAR(ValueOf(group), least, 1e-9 * least);
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Horizon, EnormousRequestsAndEmptyWorkersAreNoTrouble) {
  Group group = {.steps = {0, 1, 100}, .variance = {0, 0, 0}, .arriving = {0, 0, 0}, .mean_stay = 50};
  group.Worker({0, 0, 0});
  group.Worker({1e7, 1e7, 1e7});
  for (int i = 0; i < 2; ++i) group.Waits(1'000'000'000, {1, 1, 1});
  const Snapshot snapshot = group.View();
  FreeCapacity free;
  free.Reset(snapshot);
  Decision decision;
  EXPECT_TRUE(Horizon().Place(snapshot, {}, free, decision));
  ASSERT_EQ(decision.assignments.size(), 2u);
  for (WorkerIndex g : {0, 1}) EXPECT_EQ(decision.assignments[static_cast<size_t>(g)].worker, g);
}

}  // namespace
}  // namespace bfio::core
