#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/commands.h"
#include "tools/sim/step/one_engine.h"

namespace bfio::sim {
namespace {

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

// Linear interpolation between the two samples around rank q (n - 1); NaN without samples. REQUIRES: 0 <= q
// <= 1.
double SampleQuantile(std::vector<double> samples, double q) {
  if (samples.empty()) return std::nan("");
  const double rank = q * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::ptrdiff_t>(rank);
  std::nth_element(samples.begin(), samples.begin() + below, samples.end());
  const double low = samples[below];
  if (below + 1 == static_cast<std::ptrdiff_t>(samples.size())) return low;
  const double high = *std::min_element(samples.begin() + below + 1, samples.end());
  return low + (rank - static_cast<double>(below)) * (high - low);
}

nlohmann::ordered_json Times(const std::vector<StepArrival>& arrivals, absl::Span<const StepLife> lives,
                             double skip) {
  const StepLatencies latencies = LatenciesOf(arrivals, lives, skip * arrivals.back().at, true);
  return {{"e2e_s_p50", SampleQuantile(latencies.e2e, 0.5)},
          {"ttft_s_p50", SampleQuantile(latencies.ttft, 0.5)},
          {"ttft_s_p99", SampleQuantile(latencies.ttft, 0.99)},
          {"tpot_s_p50", SampleQuantile(latencies.tpot, 0.5)}};
}

}  // namespace

absl::Status RunEngineCommand(const ReadOptions& read) {
  using worker::BudgetGoal;
  WorkloadOptions workload;
  OneEngineOptions options;
  int64_t requests = 0, slots = 0;
  int64_t& budget = options.engine.token_budget;
  budget = 512;
  bool code_llama = false;
  std::optional<BudgetGoal> goal;
  double load = 1, skip = 0.1;
  uint64_t seed = 1;
  bool json = true;
  OptionTable table;
  AddRows(table, workload);
  table.Add("scheduler", &options.scheduler, "batch scheduler, as --scheduler of bfio_worker");
  table.Add("slots", &slots, Within(0, 1e9), "slots of the engine (max_num_seqs); 0: no limit");
  table.Add("token_budget", &budget, Within(1, 1e9), "token budget of a batch (max_num_batched_tokens)");
  table.AddChoice("engine_cost", &code_llama,
                  std::vector<std::pair<std::string, bool>>{{"llama_70b", false}, {"code_llama_34b", true}},
                  "cost model of a batch: llama_70b (Llama-3-70B on two A100) or code_llama_34b "
                  "(CodeLlama-34B on one A100, whose time grows in steps of 128 tokens)");
  table.AddChoice("budget_control", &goal,
                  std::vector<std::pair<std::string, std::optional<BudgetGoal>>>{{"off", std::nullopt},
                                                                                 {"e2e", BudgetGoal::kE2e},
                                                                                 {"ttft", BudgetGoal::kTtft},
                                                                                 {"tpot", BudgetGoal::kTpot}},
                  "off, or the latency (e2e, ttft or tpot) for which the token budget is adapted between 128 "
                  "and --token_budget");
  table.Add(
      "load", &load, Within(1e-6, 1e3),
      "arrival rate as a share of the engine's capacity at a token budget of 512, without long contexts");
  table.Add("requests", &requests, Within(1, 1e6), "number of requests that arrive");
  table.Add("skip", &skip, Within(0, 0.99),
            "warm-up: requests that arrive in this first share of the arrival time are not counted");
  table.Add("seed", &seed, "seed of arrivals and lengths");
  AddJson(table, json);
  read(table);
  if (goal && budget < kLeastBudget) {
    return absl::InvalidArgumentError(absl::StrCat("--token_budget=", budget, ": must be at least ",
                                                   kLeastBudget, " with --budget_control"));
  }
  BFIO_ASSIGN_OR_RETURN(const Trace rows, ReadRows(workload));
  if (rows.requests.empty() || requests == 0) {
    return absl::InvalidArgumentError("engine needs --requests, and --trace or --profile");
  }
  options.engine.cost = code_llama ? LongContextCodeLlama34B() : LongContextLlama70B();
  options.engine.slots = slots > 0 ? slots : worker::BatchCapacity::kUnbounded;
  options.engine.prompt_gives_token = true;
  if (goal) {
    options.adapt.emplace();
    options.adapt->goal = *goal;
    options.adapt->min_budget = kLeastBudget;
  }
  const std::vector<StepArrival> arrivals = DrawStepArrivals(rows, load, requests, options.engine.cost, seed);
  options.sample_s = arrivals.back().at / kBacklogSamples;
  options.go_on = [] { return !ShutdownSignal::Requested(); };
  BFIO_ASSIGN_OR_RETURN(const OneEngineRun run, RunOneEngine(arrivals, options));
  if (ShutdownSignal::Requested()) return absl::CancelledError("stopped by a signal");
  nlohmann::ordered_json cell = Times(arrivals, run.lives, skip);
  cell.update({{"mean_budget", run.mean_budget},
               {"keeps_up", KeepsUp(run)},
               {"completed", run.completed},
               {"throughput_tokens_per_s", static_cast<double>(run.tokens) / run.end_s}});
  PrintJson(cell);
  return absl::OkStatus();
}

}  // namespace bfio::sim
