// An overdue request enters whatever balance says: its weight exceeds every gain of balance.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "router/core/policy/bf_io_auto/urgency.h"

namespace bfio::core {
namespace {

// Evaluates the objective of `square` for all placements; true when the best one admits item 0.
bool BestAdmitsTheFirst(const Instance& instance) {
  const size_t items = instance.items.size(), workers = instance.workers.size();
  std::vector<size_t> at(items, workers);
  double best = HUGE_VAL;
  bool first = false;
  for (;;) {
    std::vector<double> load;
    std::vector<int32_t> used(workers, 0);
    for (const WorkerView& worker : instance.workers) load.push_back(static_cast<double>(worker.load_tokens));
    double value = 0;
    int64_t placed = 0;
    bool feasible = true;
    for (size_t i = 0; i < items; ++i) {
      if (at[i] == workers) continue;
      load[at[i]] += static_cast<double>(instance.items[i].LoadOn(static_cast<int32_t>(at[i])));
      feasible = feasible && ++used[at[i]] <= instance.workers[at[i]].free_slots;
      value -= instance.items[i].weight;
      ++placed;
    }
    if (feasible && placed == instance.Target()) {
      for (size_t g = 0; g < workers; ++g) {
        const WorkerView& worker = instance.workers[g];
        const double given = load[g] - static_cast<double>(worker.load_tokens);
        value += std::pow(worker.TimeAt(load[g]) + worker.prefill_weight * given - instance.target_load, 2);
      }
      if (value < best) best = value, first = at[0] != workers;
    }
    size_t i = 0;
    while (i < items && at[i]-- == 0) at[i++] = workers;
    if (i == items) return first;
  }
}

TEST(BfIoAutoForceTest, WeightOfAnOverdueRequestExceedsAnyGainInBalance) {
  // Five requests wait, one of them for long; none has been admitted yet, so P is 0.
  const std::vector<WorkerView> views(3);
  std::vector<WaitingView> waiting(5);
  for (WaitingView& request : waiting) request.enqueued_step = 101;
  waiting[0].enqueued_step = 98;
  Snapshot snapshot = {.step = 100, .workers = views, .waiting = waiting};
  const PoolScale scale = {1'000, 100};
  UrgencyTracker urgencies(/*wait_ratio=*/1);
  urgencies.Observe(snapshot);
  ASSERT_LE(urgencies.slacks()[0], 0);
  ASSERT_GT(urgencies.slacks()[1], 0);
  Rng rng(23);
  int unforced_out = 0;
  for (int trial = 0; trial < 3'000; ++trial) {
    Instance instance;
    double time = 0, mean = 0;
    const bool unequal = rng.Below(2) == 0;
    const int64_t base = rng.Below(2) == 0 ? 0 : static_cast<int64_t>(rng.Below(100'000));
    const double rate = unequal ? 0.5 + 8 * rng.Uniform() : 1;
    const double weight = rng.Below(2) == 0 ? 20 * rng.Uniform() : 0;
    double item_rate = 0;
    for (int g = 0; g < 3; ++g) {
      WorkerView worker;
      worker.load_tokens =
          base + static_cast<int64_t>(rng.Below(1 + rng.Below(rng.Below(2) == 0 ? 20'000 : 200)));
      worker.free_slots = static_cast<int32_t>(g == 0 || rng.Below(2));
      worker.time_per_token = rate * (unequal ? 0.7 + 0.6 * rng.Uniform() : 1);
      worker.prefill_weight = weight;
      worker.time_offset = weight * static_cast<double>(rng.Below(2'000));
      time += worker.TimeAt(static_cast<double>(worker.load_tokens)) / 3;
      item_rate += worker.load_rate() / 3;
      instance.workers.push_back(worker);
    }
    for (int i = 0; i < 5; ++i) {
      instance.items.emplace_back();
      instance.items.back().load = 1 + static_cast<int64_t>(rng.Below(rng.Below(3) == 0 ? 20'000 : 500));
      mean += static_cast<double>(instance.items.back().load) / 5;
    }
    instance.target_load = time + static_cast<double>(instance.Target()) * mean * item_rate / 3;
    unforced_out += BestAdmitsTheFirst(instance) ? 0 : 1;
    urgencies.SetWeights(snapshot, scale, instance);
    ASSERT_TRUE(BestAdmitsTheFirst(instance)) << "trial " << trial;
  }
  EXPECT_GT(unforced_out, 500) << "force has something to do";
}

}  // namespace
}  // namespace bfio::core
