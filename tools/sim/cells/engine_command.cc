#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "common/base/rng.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/cells/cell.h"
#include "tools/sim/cells/cells.h"
#include "tools/sim/step/one_engine.h"

ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(uint64_t, requests);
ABSL_DECLARE_FLAG(double, load);
ABSL_FLAG(std::string, scheduler, "sarathi", "engine: the batch scheduler, as bfio_worker's");
ABSL_FLAG(uint32_t, slots, 0,
          "engine: requests that an engine works on at a time; 0: any number. serve: slots of a rank, 256 "
          "unless given");
ABSL_FLAG(uint32_t, token_budget, 512, "engine: tokens of a batch");
ABSL_FLAG(std::string, engine_cost, "llama_70b",
          "engine: the time of a batch: llama_70b (Llama-3-70B on two A100) or code_llama_34b (CodeLlama-34B "
          "on one, in steps of 128 tokens)");
ABSL_FLAG(std::string, budget_control, "off",
          "engine: off, or e2e, ttft or tpot: the budget is adapted for it, from 128 to --token_budget");
ABSL_FLAG(double, skip, 0.1,
          "engine: share of the arrivals' time at the start whose requests are not counted");

namespace bfio::sim {
namespace {

constexpr double kMostStepRequests = 1e6;
// The token budget for which capacity is defined, and the smallest budget that the tuner may choose.
constexpr int64_t kReferenceBudget = 512, kLeastBudget = 128;
// Number of samples of the backlog while requests arrive.
constexpr size_t kBacklogSamples = 64;
// Maximum growth of the backlog, as a share of the tokens that arrive, for an engine that keeps up.
constexpr double kMostGrowth = 0.01;

// Rows drawn with replacement, with Poisson arrivals. `load` is a share of the engine's capacity at the
// reference budget, without long contexts.
std::vector<StepArrival> DrawStepArrivals(const Trace& rows, double load, int64_t requests,
                                          const BatchCost& cost, uint64_t seed) {
  const Trace drawn = DrawWithReplacement(rows, requests, seed);
  double tokens = 0;
  for (const TraceRequest& row : drawn.requests)
    tokens += static_cast<double>(row.prompt_tokens + row.output_tokens);
  const double gap = tokens / static_cast<double>(requests) / (load * cost.Capacity(kReferenceBudget));
  Rng times = Rng(seed).Fork(1);
  std::vector<StepArrival> arrivals;
  double at = 0;
  for (const TraceRequest& row : drawn.requests) {
    at += gap * times.Exponential();
    arrivals.push_back({at, row.prompt_tokens, row.output_tokens});
  }
  return arrivals;
}

// Compares the backlog in the last quarter of the arrivals with that in the second.
bool KeepsUp(const OneEngineRun& run) {
  if (run.tokens_left.size() < kBacklogSamples) return false;
  const auto quarter = [&](size_t which) {
    const auto from = run.tokens_left.begin() + static_cast<std::ptrdiff_t>(which * kBacklogSamples / 4);
    const auto to = from + kBacklogSamples / 4;
    return static_cast<double>(std::accumulate(from, to, int64_t{0})) / (kBacklogSamples / 4);
  };
  return quarter(3) - quarter(1) < kMostGrowth * static_cast<double>(run.tokens);
}

nlohmann::ordered_json Times(const std::vector<StepArrival>& arrivals, absl::Span<const StepLife> lives) {
  const StepLatencies latencies =
      LatenciesOf(arrivals, lives, absl::GetFlag(FLAGS_skip) * arrivals.back().at, true);
  return {{"e2e_s_p50", SampleQuantile(latencies.e2e, 0.5)},
          {"ttft_s_p50", SampleQuantile(latencies.ttft, 0.5)},
          {"ttft_s_p99", SampleQuantile(latencies.ttft, 0.99)},
          {"tpot_s_p50", SampleQuantile(latencies.tpot, 0.5)}};
}

absl::Status RunOne(const std::vector<StepArrival>& arrivals, const BatchCost& cost, int64_t slots,
                    size_t control) {
  OneEngineOptions options;
  options.scheduler = absl::GetFlag(FLAGS_scheduler);
  options.engine.cost = cost;
  options.engine.slots = slots;
  options.engine.prompt_gives_token = true;
  options.engine.token_budget = absl::GetFlag(FLAGS_token_budget);
  if (control > 0) {
    BFIO_ASSIGN_OR_RETURN(const auto goal, worker::ParseBudgetGoal(absl::GetFlag(FLAGS_budget_control)));
    options.adapt.emplace();
    options.adapt->goal = goal;
    options.adapt->min_budget = kLeastBudget;
  }
  options.sample_s = arrivals.back().at / kBacklogSamples;
  options.go_on = [] { return !ShutdownSignal::Requested(); };
  BFIO_ASSIGN_OR_RETURN(const OneEngineRun run, RunOneEngine(arrivals, options));
  if (ShutdownSignal::Requested()) return absl::CancelledError("stopped by a signal");
  nlohmann::ordered_json cell = Times(arrivals, run.lives);
  cell.update({{"mean_budget", run.mean_budget},
               {"keeps_up", KeepsUp(run)},
               {"completed", run.completed},
               {"throughput_tokens_per_s", static_cast<double>(run.tokens) / run.end_s}});
  PrintCell(cell);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunEngineCommand() {
  BFIO_ASSIGN_OR_RETURN(const size_t control, ChoiceOf("budget_control", absl::GetFlag(FLAGS_budget_control),
                                                       {"off", "e2e", "ttft", "tpot"}));
  BFIO_ASSIGN_OR_RETURN(const size_t model, ChoiceOf("engine_cost", absl::GetFlag(FLAGS_engine_cost),
                                                     {"llama_70b", "code_llama_34b"}));
  const BatchCost cost = model == 0 ? LongContextLlama70B() : LongContextCodeLlama34B();
  const uint32_t budget = absl::GetFlag(FLAGS_token_budget);
  for (const absl::Status& status :
       {CheckNumber("load", absl::GetFlag(FLAGS_load), 1e-6, 1e3),
        CheckNumber("requests", static_cast<double>(absl::GetFlag(FLAGS_requests)), 1, kMostStepRequests),
        CheckNumber("skip", absl::GetFlag(FLAGS_skip), 0, 0.99),
        CheckNumber("token_budget", budget, control > 0 ? kLeastBudget : 1, 1e9)}) {
    if (!status.ok()) return status;
  }
  BFIO_ASSIGN_OR_RETURN(const Trace rows, RowsFromFlags());
  if (rows.requests.empty()) return absl::InvalidArgumentError("engine needs --trace or --profile");
  const std::vector<StepArrival> arrivals =
      DrawStepArrivals(rows, absl::GetFlag(FLAGS_load), static_cast<int64_t>(absl::GetFlag(FLAGS_requests)),
                       cost, absl::GetFlag(FLAGS_seed));
  const int64_t slots =
      absl::GetFlag(FLAGS_slots) > 0 ? absl::GetFlag(FLAGS_slots) : worker::BatchCapacity::kUnbounded;
  return RunOne(arrivals, cost, slots, control);
}

}  // namespace bfio::sim
