// The effect of the paper's J on a large pool without lookahead.
//
// Its term - sum L rewards large requests, so without lookahead it uses them for every gap and keeps the
// small ones waiting: the larger the choice, the more one-sided the remaining pool. Beyond a few pools of a
// step's size a larger choice has no further benefit. Placing the oldest requests, largest first, is better
// without any search, and a short lookahead is far better. It stays at half of FCFS's imbalance.
// Requests: prompts uniform in 1 .. 100, outputs geometric with p = 0.05; 32 workers of 16 slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/base/rng.h"
#include "research/solver/overload.h"
#include "router/core/solver/solver.h"

namespace bfio::testing {
namespace {

Trace Geometric() {
  Rng rng(3);
  Trace trace;
  for (int i = 0; i < 20'000; ++i) {
    TraceRequest request;
    request.prompt_tokens = 1 + static_cast<int64_t>(rng.Below(100));
    request.output_tokens = 1 + static_cast<int64_t>(rng.Exponential() / -std::log1p(-0.05));
    trace.requests.push_back(request);
  }
  return trace;
}

struct Outcome {
  // Mean over the counted steps, in tokens.
  double imbalance = 0;
  // The mean prompt length of the waiting requests, in tokens.
  double waiting_load = 0;
};

Outcome Run(const Trace& trace, int32_t horizon, int64_t reveal, const Overload::Decide& decide) {
  constexpr int kWarmup = 500, kSteps = 1000;
  Overload overload({32, 16, horizon, reveal}, trace);
  Outcome outcome;
  for (int step = 0; step < kWarmup + kSteps; ++step) {
    const double imbalance = overload.Step([&](const core::Instance& instance) -> const core::Solution& {
      double load = 0;
      for (const core::SolverItem& item : instance.items) load += static_cast<double>(item.load);
      if (step >= kWarmup) outcome.waiting_load += load / static_cast<double>(instance.items.size()) / kSteps;
      return decide(instance);
    });
    if (step >= kWarmup) outcome.imbalance += imbalance / kSteps;
  }
  return outcome;
}

// A budget of 1 leaves the construction unchanged: the oldest, largest first.
Outcome Paper(const Trace& trace, int32_t horizon, int64_t reveal, int64_t budget = 400'000) {
  core::SolverSettings settings;
  settings.max_evaluations = budget;
  settings.objective = core::ObjectiveKind::kPaper;
  core::Solver solver(settings);
  return Run(trace, horizon, reveal,
             [&](const core::Instance& instance) -> const core::Solution& { return solver.Solve(instance); });
}

// Oldest first, to the worker with most free slots.
Outcome Fcfs(const Trace& trace) {
  core::Solution solution;
  return Run(trace, 0, 512, [&](const core::Instance& instance) -> const core::Solution& {
    std::vector<core::WorkerView> workers = instance.workers;
    solution.worker_of.assign(instance.items.size(), core::kUnassigned);
    for (int64_t i = 0; i < instance.Target(); ++i) {
      const auto most = std::max_element(workers.begin(), workers.end(),
                                         [](auto& a, auto& b) { return a.free_slots < b.free_slots; });
      --most->free_slots;
      solution.worker_of[i] = static_cast<int32_t>(most - workers.begin());
    }
    return solution;
  });
}

TEST(SelectionBiasTest, WithoutLookaheadALargePoolKeepsSmallRequestsOnly) {
  const Trace trace = Geometric();
  const Outcome fcfs = Fcfs(trace), small = Paper(trace, 0, 128), large = Paper(trace, 0, 1536),
                largest_first = Paper(trace, 0, 512, 1), ahead = Paper(trace, 5, 512);
  RecordProperty("fcfs", static_cast<int>(fcfs.imbalance));
  RecordProperty("small", static_cast<int>(small.imbalance));
  RecordProperty("large", static_cast<int>(large.imbalance));
  RecordProperty("ahead", static_cast<int>(ahead.imbalance));
  EXPECT_GT(fcfs.waiting_load, 45);
  EXPECT_LT(small.waiting_load, 20);
  EXPECT_LT(large.waiting_load, 6);
  EXPECT_GT(large.imbalance, 1.4 * small.imbalance) << "twelve times the choice";
  EXPECT_GT(small.imbalance, 1.1 * largest_first.imbalance) << "optimising J costs balance";
  EXPECT_GT(large.imbalance, 0.5 * fcfs.imbalance);
  EXPECT_LT(large.imbalance, 0.6 * fcfs.imbalance);
  EXPECT_LT(ahead.imbalance, 0.4 * small.imbalance);
}

}  // namespace
}  // namespace bfio::testing
