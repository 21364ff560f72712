// Placement by expected loads at future steps: the cost of a request compared with direct evaluation, and the
// chosen workers.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/bf_io_auto/horizon.h"

namespace bfio::core {
namespace {

using ::testing::ElementsAre;

// A group and its outlook; owns the data that a snapshot refers to.
struct Group {
  std::vector<int64_t> steps;
  std::vector<WorkerView> workers;
  std::vector<double> load, variance, curves;
  std::vector<int32_t> curve_of;
  std::vector<WaitingView> waiting;
  double mean_stay = 1;

  FarOutlook Far() const { return {steps, load, variance, curve_of, curves, mean_stay}; }
  Snapshot View() const { return {.workers = workers, .waiting = waiting, .far = Far()}; }
  void Worker(const std::vector<double>& expected, int32_t free_slots = 100) {
    WorkerView& view = workers.emplace_back();
    view.load_tokens = static_cast<int64_t>(expected[0]);
    view.free_slots = free_slots;
    view.free_kv_tokens = int64_t{1} << 40;
    load.insert(load.end(), expected.begin(), expected.end());
  }
  void Waits(int64_t prompt, const std::vector<double>& stays) {
    WaitingView& view = waiting.emplace_back();
    view.id = waiting.size();
    view.prefill_tokens = view.kv_reserve_tokens = prompt;
    curve_of.push_back(static_cast<int32_t>(curve_of.size()));
    curves.insert(curves.end(), stays.begin(), stays.end());
  }
  std::vector<WorkerIndex> Place() const {
    const Snapshot snapshot = View();
    FreeCapacity free;
    free.Reset(snapshot);
    Decision decision;
    Horizon horizon;
    EXPECT_TRUE(horizon.Place(snapshot, {}, free, decision));
    std::vector<WorkerIndex> result(waiting.size(), kNoWorker);
    for (const Assignment& assignment : decision.assignments)
      result[assignment.waiting_index] = assignment.worker;
    return result;
  }
};

ExpectedSteps::Request RequestOf(const Group& group, size_t i) {
  ExpectedSteps::Request request;
  const size_t knots = group.steps.size();
  const auto prompt = static_cast<double>(group.waiting[i].prefill_tokens);
  for (size_t k = 0; k < knots; ++k) {
    const double stays = group.curves[static_cast<size_t>(group.curve_of[i]) * knots + k];
    request.tokens.push_back(stays * (prompt + static_cast<double>(group.steps[k])));
    request.prompt.push_back(stays * prompt);
  }
  return request;
}

double ValueOf(const Group& group) {
  ExpectedSteps steps;
  steps.Reset(group.workers, group.Far());
  return steps.Value();
}

// The same group with request i placed on worker g.
Group With(Group group, size_t i, WorkerIndex g) {
  const ExpectedSteps::Request request = RequestOf(group, i);
  const size_t knots = group.steps.size();
  for (size_t k = 0; k < knots; ++k) {
    const WorkerView& worker = group.workers[g];
    group.load[static_cast<size_t>(g) * knots + k] +=
        request.tokens[k] + worker.prefill_weight * request.prompt[k] / worker.time_per_token;
  }
  return group;
}

// Between 2 and `most` workers, some with unequal speeds, and eight requests of any length.
Group Random(uint64_t seed, uint64_t most = 20) {
  Rng rng(seed);
  Group group = {.steps = {0, 1, 5, 40, 300, 2000}, .mean_stay = 1 + 1000 * rng.Uniform()};
  const bool unequal = rng.Below(2) == 0;
  for (uint64_t g = 2 + rng.Below(most - 1); g > 0; --g) {
    std::vector<double> expected = {std::floor(20'000 * rng.Uniform())};
    while (expected.size() < group.steps.size()) expected.push_back(expected.back() * 1.2 * rng.Uniform());
    group.Worker(expected, static_cast<int32_t>(8 + rng.Below(3)));
    if (!unequal) continue;
    group.workers.back().time_per_token = 0.5 + rng.Uniform();
    group.workers.back().time_offset = 1000 * rng.Uniform();
    group.workers.back().prefill_weight = rng.Uniform();
  }
  for (size_t k = 0; k < group.steps.size(); ++k) group.variance.push_back(k == 0 ? 0 : 1e6 * rng.Uniform());
  for (int i = 0; i < 8; ++i) {
    std::vector<double> stays = {1};
    while (stays.size() < group.steps.size()) stays.push_back(stays.back() * rng.Uniform());
    group.Waits(static_cast<int64_t>(1 + rng.Below(30'000)), stays);
  }
  return group;
}

TEST(Horizon, RaiseIsTheDifferenceOfTwoEvaluations) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Group group = Random(seed);
    ExpectedSteps steps;
    steps.Reset(group.workers, group.Far());
    const double before = steps.Value();
    const ExpectedSteps::Request request = RequestOf(group, 0);
    steps.Open(request);
    for (WorkerIndex g = 0; g < static_cast<WorkerIndex>(group.workers.size()); ++g) {
      const double raise = steps.Raise(g);
      ASSERT_NEAR(raise, ValueOf(With(group, 0, g)) - before, 1e-9 * before) << "seed " << seed;
      ASSERT_GE(raise, 0);
    }
  }
}

TEST(Horizon, AddedRequestsCountAsIfTheyHadBeenThere) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Group group = Random(seed);
    ExpectedSteps steps;
    steps.Reset(group.workers, group.Far());
    for (size_t i = 0; i < group.waiting.size(); ++i) {
      const auto g = static_cast<WorkerIndex>(i % group.workers.size());
      const ExpectedSteps::Request request = RequestOf(group, i);
      steps.Open(request);
      steps.Add(g);
      group = With(group, i, g);
      const double direct = ValueOf(group);
      ASSERT_NEAR(steps.Value(), direct, 1e-9 * direct) << "seed " << seed;
    }
  }
}

// Enough workers that bounds exclude whole blocks of them, with sums that grow until requests are settled.
TEST(Horizon, LeastIsTheLeastOfAllRaisesInLargeGroupsToo) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Group group = Random(seed, 400);
    Rng rng(seed);
    // From equal to very different workers, and from negligible to very large requests.
    const double apart = std::pow(10, -3 + 4 * rng.Uniform()), size = std::pow(10, -3 + 4 * rng.Uniform());
    for (double& load : group.load) load = 20'000 + apart * load;
    for (WorkerView& worker : group.workers) worker.free_slots = static_cast<int32_t>(rng.Below(5));
    FreeCapacity free;
    free.Reset(group.View());
    ExpectedSteps steps;
    steps.Reset(group.workers, group.Far());
    for (size_t i = 0; i < 50 && free.free_slots() > 0; ++i) {
      ExpectedSteps::Request request = RequestOf(group, i % group.waiting.size());
      for (double& tokens : request.tokens) tokens *= size;
      for (double& tokens : request.prompt) tokens *= size;
      steps.Open(request);
      const WaitingView& view = group.waiting[0];
      WorkerIndex least = kNoWorker;
      for (WorkerIndex g = 0; g < free.workers(); ++g) {
        if (free.Fits(view, g) && (least == kNoWorker || steps.Raise(g) < steps.Raise(least))) least = g;
      }
      ASSERT_EQ(steps.Least(free, view), least) << "seed " << seed << ", request " << i;
      steps.Add(least);
      free.Take(view, least);
    }
  }
}

TEST(Horizon, EachGoesLargestFirstWhereTheSumGrowsLeast) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Group group = Random(seed);
    const std::vector<WorkerIndex> placed = group.Place();
    std::vector<size_t> order(group.waiting.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return group.waiting[a].prefill_tokens > group.waiting[b].prefill_tokens;
    });
    for (const size_t i : order) {
      double least = ValueOf(With(group, i, 0));
      for (size_t g = 1; g < group.workers.size(); ++g)
        least = std::min(least, ValueOf(With(group, i, static_cast<WorkerIndex>(g))));
      ASSERT_NEAR(ValueOf(With(group, i, placed[i])), least, 1e-9 * least) << "seed " << seed;
      group = With(group, i, placed[i]);
    }
  }
}

TEST(Horizon, EnormousRequestsAndEmptyWorkersAreNoTrouble) {
  Group group = {.steps = {0, 1, 100}, .variance = {0, 0, 0}, .mean_stay = 50};
  group.Worker({0, 0, 0});
  group.Worker({1e7, 1e7, 1e7});
  group.Waits(1'000'000'000, {1, 1, 1});
  group.Waits(1'000'000'000, {1, 1, 1});
  EXPECT_THAT(group.Place(), ElementsAre(0, 1));
}

// The first worker has the lower load now, but its residents are young and stay; those of the second end
// soon.
Group LowNowHighLater() {
  Group group = {.steps = {0, 10, 100, 1000}, .variance = {0, 100, 100, 100}, .mean_stay = 1000};
  group.Worker({4'000, 4'400, 8'000, 40'000});
  group.Worker({6'000, 3'000, 1'000, 0});
  return group;
}

TEST(Horizon, LongRequestGoesToTheWorkerThatWillBeLow) {
  Group group = LowNowHighLater();
  group.Waits(500, {1, 1, 1, 0.9});
  EXPECT_THAT(group.Place(), ElementsAre(1)) << "the first has fewer tokens now";
}

TEST(Horizon, ShortRequestGoesToTheWorkerThatIsLowNow) {
  Group group = LowNowHighLater();
  group.Waits(500, {1, 0, 0, 0});
  EXPECT_THAT(group.Place(), ElementsAre(0));
}

TEST(Horizon, UncertainLoadCountsLittle) {
  Group group = LowNowHighLater();
  group.variance = {0, 100, 1e12, 1e12};
  group.mean_stay = 20;
  group.Waits(500, {1, 0, 0, 0});
  EXPECT_THAT(group.Place(), ElementsAre(0));
}

TEST(Horizon, KeepsToSlots) {
  Group group = LowNowHighLater();
  group.workers[1].free_slots = 1;
  group.Waits(500, {1, 1, 1, 0.9});
  group.Waits(400, {1, 1, 1, 0.9});
  EXPECT_THAT(group.Place(), ElementsAre(1, 0));
}

TEST(Horizon, ReportsARequestThatFitsNowhere) {
  Group group = LowNowHighLater();
  for (WorkerView& worker : group.workers) worker.free_kv_tokens = 100;
  group.Waits(500, {1, 1, 1, 0.9});
  const Snapshot snapshot = group.View();
  FreeCapacity free;
  free.Reset(snapshot);
  Decision decision;
  Horizon horizon;
  EXPECT_FALSE(horizon.Place(snapshot, {}, free, decision));
}

}  // namespace
}  // namespace bfio::core
