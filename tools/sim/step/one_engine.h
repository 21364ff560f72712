// One run of one engine with a scheduler, a batch cost and arriving requests.
//
// Purpose: drives worker/scheduler/engine_model.h for a single engine: stability, budgets, latencies.
// Networks of engines are in research/network.py. Deterministic. Threads: any, no state.
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
  // Adapts the token budget, starting at engine.token_budget, which is also its maximum; slots and
  // prompt_gives_token are those of the engine. The tuner fits the cost from the batches; it is not given the
  // cost.
  std::optional<worker::BudgetTunerOptions> adapt;
  // No batch starts after this time; requests that have not ended by then are cut off.
  double until_s = 1e18;
  // Interval at which the numbers of remaining requests and tokens are recorded; 0: not recorded.
  double sample_s = 0;
  // Called from time to time; the run ends when it returns false. May be empty.
  std::function<bool()> go_on;
};

// The times of a request in seconds; negative: not reached.
struct StepLife {
  // When its last prompt token was computed (and, if prompts give a token, its first token generated), and
  // when its last token was generated.
  double prefilled = -1, completed = -1;
};

struct OneEngineRun {
  // By arrival.
  std::vector<StepLife> lives;
  int64_t completed = 0, batches = 0, tokens = 0;
  double busy_s = 0, end_s = 0;
  // At its last call the scheduler formed no batch although there was work: it waits forever for pending
  // prompts.
  bool stuck = false;
  // Mean over the batches, weighted by their duration.
  double mean_budget = 0;
  // With sample_s: entry i is for the time i * sample_s.
  std::vector<int64_t> requests_left, tokens_left;
};

// INVALID_ARGUMENT for an arrival of less than a token, or one that is earlier than its predecessor.
absl::Status CheckStepArrivals(const std::vector<StepArrival>& arrivals);

// `arrivals` are ordered by `at`. INVALID_ARGUMENT for an unknown scheduler, or an arrival of less than a
// token.
absl::StatusOr<OneEngineRun> RunOneEngine(const std::vector<StepArrival>& arrivals,
                                          const OneEngineOptions& options);

// Latencies of completed requests that arrived at `from` or later, in seconds, in order of arrival. `ttft`
// runs to the end of the prompt, which is the first token where prompts give one; `tpot` has no entry for
// requests without a token after that.
struct StepLatencies {
  std::vector<double> ttft, tpot, e2e;
};
StepLatencies LatenciesOf(const std::vector<StepArrival>& arrivals, absl::Span<const StepLife> lives,
                          double from, bool prompt_gives_token);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_STEP_ONE_ENGINE_H_
