// What the literal J does to a large pool when it cannot see ahead.
//
// Its term - sum L rewards large requests, so without lookahead it spends them on every gap and keeps the
// small ones waiting: the more choice it has, the more one-sided what is left. Beyond a few pools of a step's
// size more choice then helps no more, the oldest requests, largest first, do better without any search, and
// a short lookahead gains far more. (It does not fall behind FCFS, as weaker searches on the same J were
// seen to do.)
// Requests: prompts uniform in 1 .. 100, outputs geometric with p = 0.05; 32 workers of 16 slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/base/rng.h"
#include "router/core/solver/solver.h"
#include "tests/differential/overload.h"

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
  // Mean over the counted steps, tokens.
  double imbalance = 0;
  // The mean prompt of those that wait, tokens.
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

// A budget of 1 leaves the construction as it is: the oldest, largest first.
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
  EXPECT_GT(large.imbalance, 0.9 * small.imbalance) << "twelve times the choice";
  EXPECT_GT(small.imbalance, 1.1 * largest_first.imbalance) << "optimising J costs balance";
  EXPECT_LT(large.imbalance, 0.7 * fcfs.imbalance);
  EXPECT_LT(ahead.imbalance, 0.4 * small.imbalance);
}

}  // namespace
}  // namespace bfio::testing
