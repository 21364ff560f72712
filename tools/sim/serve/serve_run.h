// One run of a rule on a workload, and its results. Requests arrive as a Poisson process at a share of the
// group's capacity or, in a closed loop, whenever another one ends; their order and lengths are those of a
// trace. The rule plans every step, `lag` steps ahead. Counting begins after a warm-up and ends when the last
// counted request has ended; requests keep arriving until then. Deterministic for a seed. Threads: runs in
// different threads share nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cost/batch_time.h"
#include "common/cost/group_time.h"
#include "common/workload/trace.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/sim/rank/engine_run.h"

namespace bfio::sim {

// Lengths of a workload's requests, and how many of them per second a group of engines can serve. One
// definition of load for every rule: a share of the capacity of a perfectly balanced group, so that no rule's
// own capacity sets the scale. Pure; any thread. Tokens, seconds, requests per second.

// Means over a workload's requests, with prompt length s and output length o.
struct LengthMoments {
  double prompt = 0;
  double output = 0;
  double prompt_squared = 0;
  // E[(o - 1) s + (o - 1)^2 / 2]: cached tokens that all decodes of a request read together.
  double decode_context = 0;
};
LengthMoments MomentsOf(const Trace& trace);
// The same if another rank computes all of the prompts but their last tokens.
LengthMoments WithoutPrompts(LengthMoments moments);
// Mean time in which a rank computes a prompt alone, with up to `budget` tokens per step.
double PromptSeconds(const Trace& trace, const BatchCost& cost, int64_t budget);

// Steps until the decodes of an initially empty group attend to `share` of the tokens of its steady state, if
// the same number of requests begins in every step. A few requests with long outputs account for much of
// these tokens, so this can take many times the mean lifetime of a request.
int64_t StepsUntilFilled(const Trace& trace, double share);

struct ServeCapacity {
  // lambda*, see CapacityOf.
  double requests_per_s = 0;
  // At this rate: number of requests that decode on each rank, and the step time.
  int64_t decodes = 0;
  double step_s = 0;
};

// lambda* = max over N <= slots of G mu / T(N). N decodes per rank end at mu = N / (E[o] - 1) requests per
// step, and prompts are computed evenly at the same rate: T = C + A max(0, N + mu E[s] - B0) + K1 mu E[s^2] /
// 2 + K2 mu decode_context. A step has at most 2,048 rows, unless N = 1 alone exceeds them. REQUIRES:
// moments.output > 1.
ServeCapacity CapacityOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks, int64_t slots);

// Mean latencies in a perfectly balanced group, in seconds.
struct ServeFloor {
  double ttft_s = 0, tpot_s = 0, e2e_s = 0;
};

// Assumes that no request waits, no row is wasted, and all ranks take equally long. N decodes per rank end at
// N / (E[o] - 1) = arrivals_per_s / ranks per step; T is the step time as in CapacityOf, but N need not be an
// integer. With noise (`jitter` as in ServeGroup::Options) a step takes as long as the slowest rank's random
// factor makes it, which no plan can predict. A first token takes one step, plus half a step because requests
// arrive at any time; each further token takes one step. Empty when such a group cannot serve this rate with
// up to `slots` decodes per rank. REQUIRES: moments.output > 1.
std::optional<ServeFloor> FloorOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks,
                                  int64_t slots, double arrivals_per_s, double jitter);

// Expectation of the largest of `ranks` independent lognormal factors of mean 1 whose logarithms have the
// standard deviation `jitter`. Computed by numerical integration, with an error below 1e-6.
double MeanOfLargestFactor(int32_t ranks, double jitter);

struct ServeOptions {
  std::string rule = "bf_io";
  int32_t workers = 8;
  int64_t slots = 256;
  // Maximum tokens of a rank's step; ignored by rules without a budget.
  int64_t budget = 2048;
  // Disaggregated prefill: ranks that compute prompts for the others, with HandOffRules (`rule`). `load` is
  // then a share of what the other ranks could decode.
  int32_t prefill_ranks = 0;
  int64_t prefill_budget = 8192;
  // KV memory of a decode rank, of which engines' routers keep a share free (core::KvAdmissionOptions); 0: no
  // limit. Without enough of it engines preempt requests.
  int64_t kv_tokens = 0;
  // Time of a transfer of KV: in total, and per token.
  double transfer_s = 5e-3, transfer_s_per_token = 5e-6;
  // How long a prefill rank keeps KV that is not fetched, and how much earlier the router drops it.
  double lease_s = 30, lease_margin_s = 10;
  // Arrival rate as a share of ServeCapacity::requests_per_s. With `closed`: number of requests in the system
  // as a share of all slots; a new request arrives whenever one ends.
  double load = 0.7;
  bool closed = false;
  GroupCost cost;
  // The rule plans with a cost that is fitted to the times of steps, not the true one.
  bool fitted_cost = false;
  // A plan of bfio made from the reports of step k is for step k + lag. 2 is the router's pipelined mode;
  // with 1 or 0 the group waits for its plan. The engines' own rules decide when a step begins.
  int32_t lag = 0;
  // TTFT objective of every request, in seconds; 0: none.
  double ttft_objective_s = 0;
  double jitter = 0;
  // ServeGroup::Options::tokens_per_step.
  double tokens_per_step = 1;
  // Requests that are counted, at least. With 3,000 about thirty lie beyond a p99.
  int64_t least_requests = 3000;
  uint64_t seed = 1;
  // Called after each step: the group, its step, when it ended, and all requests so far.
  std::function<void(const ServeGroup&, const ServeStep&, double, const std::vector<ServeRequest>&)> watch =
      {};
};

struct ServeResult {
  ServeCapacity capacity;
  double arrivals_per_s = 0;
  // Duration in seconds of the warm-up, and of the period whose arrivals are counted.
  double warmup_s = 0, counted_s = 0;
  int64_t steps = 0;
  double step_s_mean = 0;
  RequestTimes times;
  Latencies itl_s;
  // Share of the requests whose first token met the objective; absent without an objective.
  std::optional<double> ttft_met;
  // Share of all ranks' time spent waiting for the slowest rank: in total; if the steps had only their
  // decodes; and the difference, which prompts cause.
  double idle_fraction = 0, idle_decode_fraction = 0, idle_prefill_fraction = 0;
  double throughput_tokens_per_s = 0;
  // Throughput if every step took the mean of the ranks' times.
  double balanced_tokens_per_s = 0;
  // From the end of a prompt on a prefill rank to its first step on the rank that decodes it, without the
  // transfer.
  Latencies hand_off_s;
  // Hand-offs that were dropped, and all that were used.
  int64_t expired = 0, handed_over = 0;
  // Requests that began with a hand-off twice; 0.
  int64_t reused = 0;
  int64_t preempted = 0;
};

// INVALID_ARGUMENT for a bad option or an empty trace. RESOURCE_EXHAUSTED when the rule does not keep up:
// some counted requests have not ended after three times the expected duration.
absl::StatusOr<ServeResult> RunServe(const ServeOptions& options, const Trace& trace);

nlohmann::ordered_json ServeJson(const ServeOptions& options, const std::string& workload,
                                 const ServeResult& result);

}  // namespace bfio::sim
