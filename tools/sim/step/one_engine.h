// One engine, a scheduler, a batch cost, and requests that arrive: the whole of a run and what it shows.
//
// Purpose: the driver of worker/scheduler/engine_model.h for a single engine: stability, budgets, latencies.
// Networks of engines are tools/sim/network's. Deterministic. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_STEP_ONE_ENGINE_H_
#define BFIO_TOOLS_SIM_STEP_ONE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/scheduler/budget_tuner.h"
#include "worker/scheduler/engine_model.h"

namespace bfio::sim {

struct StepArrival {
  // Seconds.
  double at = 0;
  int64_t prefill = 1, decode = 1;
  int64_t priority = 0;
};

struct OneEngineOptions {
  std::string scheduler = "sarathi";
  worker::BatchOrder order = worker::BatchOrder::kFcfs;
  worker::EngineModelOptions engine;
  // Adapts the token budget, beginning at engine.token_budget, which is the largest; slots and
  // prompt_gives_token are the engine's. The tuner fits the cost from the batches, it does not get it.
  std::optional<worker::BudgetTunerOptions> adapt;
  // No batch starts after it; requests that have not ended by then are cut off.
  double until_s = 1e18;
  // Requests and tokens left are kept every so many seconds; 0: not.
  double sample_s = 0;
  // Asked now and then; false: the run ends there. May be empty.
  std::function<bool()> go_on;
};

// A request's life; seconds, negative: has not come to it.
struct StepLife {
  // Its last prompt token was computed, and with it, if prompts give a token, the first token made; its last
  // token.
  double prefilled = -1, completed = -1;
};

struct OneEngineRun {
  // By arrival.
  std::vector<StepLife> lives;
  int64_t completed = 0, batches = 0, tokens = 0;
  double busy_s = 0, end_s = 0;
  // Prompts of the backlog stop the scheduler permanently: the last time it was asked there
  // was work and it formed no batch.
  bool stuck = false;
  // Of the batches, weighted by their seconds.
  double mean_budget = 0;
  // With sample_s: at sample * sample_s.
  std::vector<int64_t> requests_left, tokens_left;
};

// INVALID_ARGUMENT for an arrival of less than a token, or one that comes before the one before it.
absl::Status CheckStepArrivals(const std::vector<StepArrival>& arrivals);

// `arrivals` in the order of `at`. INVALID_ARGUMENT for an unknown scheduler, or an arrival of less than a
// token.
absl::StatusOr<OneEngineRun> RunOneEngine(const std::vector<StepArrival>& arrivals,
                                          const OneEngineOptions& options);

// Of completed requests that arrived at `from` or later; seconds, in their order. `ttft` runs to the end of
// the prompt, which is the first token where prompts give one; `tpot` has no entry for requests without a
// token after that.
struct StepLatencies {
  std::vector<double> ttft, tpot, e2e;
};
StepLatencies LatenciesOf(const std::vector<StepArrival>& arrivals, absl::Span<const StepLife> lives,
                          double from, bool prompt_gives_token);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_STEP_ONE_ENGINE_H_
