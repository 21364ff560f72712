// The input and the output of a policy. The one interface between scheduling state and decision. A Snapshot
// is an immutable view of the group at the step in which the plan will be applied: loads are projected to
// that step and include assignments in flight. Ownership: a Snapshot borrows; it is valid during one
// Policy::Decide call only. Threads: any, plain data.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/kv_capacity.h"
#include "router/core/model/request.h"

namespace bfio::core {

struct WorkerView {
  // L_g at the plan's step, before new assignments, in tokens: the load of resident requests and of those in
  // flight.
  int64_t load_tokens = 0;
  // Number of requests that are resident or in flight.
  int32_t active = 0;
  // cap[g]: number of requests that this worker can still take; 0 while it drains.
  int32_t free_slots = 0;
  // KV tokens that are not reserved. Negative where admission has accepted more than could run to the end.
  int64_t free_kv_tokens = 0;
  // KV capacity in tokens: free_kv_tokens of the empty worker.
  int64_t total_kv_tokens = std::numeric_limits<int64_t>::max();
  // Longest prompt + output of a request here.
  int64_t max_sequence_tokens = std::numeric_limits<int64_t>::max();
  // Whether the empty worker could take a request that may come to hold this many KV tokens.
  bool CouldHold(int64_t reserve_tokens) const {
    return reserve_tokens < max_sequence_tokens && reserve_tokens <= total_kv_tokens;
  }
  // False while it drains; the level that the other workers should keep then ignores its load.
  bool accepts_new = true;
  // Local time of a step, in units of a reference worker's time per token: time_offset + time_per_token *
  // load. Workers of different speed are balanced by this time, not by tokens.
  double time_per_token = 1;
  double time_offset = 0;
  // Mean time of a request here from first step to last, in a unit that all workers share. It differs between
  // chains of servers.
  double service_time = 1;
  // Local time of a step with this load.
  double TimeAt(double tokens) const { return time_offset + time_per_token * tokens; }
  // Local time of the plan's step with another request of `more` tokens placed here.
  double Time(int64_t more = 0) const { return TimeAt(static_cast<double>(load_tokens + more)); }
};

struct WaitingView {
  RequestId id = 0;
  // s: the load that the request adds in its first step, in tokens.
  int64_t prefill_tokens = 0;
  // RequestSpec::computed_tokens.
  int64_t computed_tokens = 0;
  // RequestSpec::prefix; empty: unknown. Borrowed from the pool.
  absl::Span<const uint64_t> prefix;
  // KV tokens that it may come to need. It fits any worker that has this many unreserved tokens, whatever
  // Snapshot::kv says.
  int64_t kv_reserve_tokens = 0;
  // Step at which the request entered the pool; Snapshot::step minus this is its waiting age in steps.
  int64_t enqueued_step = 0;
  // RequestSpec::seniority: changes its order, not its waiting age.
  int64_t seniority = 0;
  int64_t senior_step() const { return enqueued_step - seniority; }
  int64_t deadline_us = RequestSpec::kNoDeadline;
  // RequestSpec::ttft_objective_s.
  std::optional<double> ttft_objective_s;
  int32_t priority = 0;
  std::optional<int64_t> predicted_output_tokens;
  int64_t max_new_tokens = 0;
  // RequestSpec::generated_tokens.
  int64_t generated_tokens = 0;
  uint32_t tenant = 0;
  // Weighted tokens served to its tenant beyond those of the least served tenant with a waiting request.
  double tenant_excess_tokens = 0;
  // Steps that its tenant's next request has waited in the fair reference (scheduler/virtual_fcfs.h); 0 where
  // the reference has no request of the tenant left. Set where there is more than one tenant.
  int64_t tenant_reference_wait = 0;
  // Row of Outlook::curves with its survival probabilities; 0 without an outlook.
  int32_t curve = 0;
  // Row of Snapshot::kv.need.
  int32_t kv_need = 0;
  KvDemand kv() const { return {kv_reserve_tokens, kv_need}; }
  // The rank of RequestSpec::held_to; no policy gets such a request.
  WorkerIndex held_to = kNoWorker;
  // It reserves all of kv_reserve_tokens at once (RequestSpec::reserves_kv).
  bool reserves_kv = false;
  // RequestSpec::steps_alone is set: placed before the policy is called, on any worker that it fits.
  bool runs_alone = false;
  // Since it arrived, at least one group has decided while another group also had free slots.
  bool passed_over = false;
};

// The prompts that each rank still has to compute (router/core/prefill/prefill_view.h).
struct PrefillView;

// Predictions for the steps after the plan's, h = 1 .. H, filled in by router/core/lookahead. Rows have H + 1
// entries; h = 0 is the plan's own step. All spans are empty when horizon is 0.
struct Outlook {
  // H, in steps.
  int32_t horizon = 0;
  // [g * (H + 1) + h]: expected load of worker g's present requests at step + h, in tokens. A request that is
  // still active h steps later has grown by h.
  absl::Span<const double> load;
  // [c * (H + 1) + h]: probability that a request admitted by this plan is still active at step + h; 1 at h =
  // 0. Request i adds the load (s_i + h) * curves[curve_i][h] to its worker at step + h.
  absl::Span<const double> curves;
};

// Predictions as far ahead as requests stay, at a few steps whose distance grows (lookahead/far_outlook.h
// fills it). Empty where the rule of placement does not look ahead, or nothing is predicted.
struct FarOutlook {
  // 0 = h_0 < h_1 < .. < h_(K - 1).
  absl::Span<const int64_t> steps;
  // [g * K + k]: expected load of worker g's present requests at step + h_k, tokens.
  absl::Span<const double> load;
  // [k]: variance of a worker's load at step + h_k, caused by the requests that end and arrive until then;
  // the mean over the workers, tokens^2.
  absl::Span<const double> variance;
  // [k]: load of a worker at step + h_k from requests that arrive until then, tokens: that of the requests
  // that arrived in as many steps before, in the mean over the workers.
  absl::Span<const double> arriving;
  // By waiting index the row of `curves`: [c * K + k] is the probability that a request admitted by this plan
  // is still active at step + h_k.
  absl::Span<const int32_t> curve_of;
  absl::Span<const double> curves;
  // Mean number of steps that a resident still stays.
  double mean_stay = 0;
};

// The parts of the waiting prompts that workers have computed already, and the prompt tokens that workers
// have left to compute, where some workers keep the KV of earlier prompts (WorkerSpec::prefix_cache).
struct PrefixView;

// How requests are placed while every one of them gets a slot (policy/bf_io_auto).
enum class PlacementRule : uint8_t {
  // Some workers are kept low for the next large request (headroom.h).
  kHeadroom,
  // Each to the worker where it lengthens the expected steps least (horizon.h).
  kHorizon,
  // Each to the least loaded worker, with even request counts (policy/trtllm).
  kCounts,
  // As kHorizon, but later arrivals are expected to fill the workers below the mean (horizon.h).
  kRefill,
};

// Whether the rule reads Snapshot::far.
constexpr bool LooksAhead(PlacementRule rule) {
  return rule == PlacementRule::kHorizon || rule == PlacementRule::kRefill;
}

// The reference wait of a class: under first come, first served within the class, and in fair order of its
// tenants, 99 % of its requests admitted recently in any group would have waited at most `p99` steps.
// `long_run_p99` is the same over a time ten times as long. In a burst both are at least the wait of the
// request that would come next.
struct ClassWait {
  int32_t priority = 0;
  int64_t p99 = 0;
  int64_t long_run_p99 = 0;
};

struct Snapshot {
  // The step at which the plan will be applied.
  int64_t step = 0;
  // The group's workers by rank.
  absl::Span<const WorkerView> workers;
  // The waiting pool: higher priority first, then by senior_step: oldest first, except calls of agents.
  absl::Span<const WaitingView> waiting;
  // Number of all waiting requests; `waiting` may hold only the first of them. 0: the size of `waiting`.
  int64_t pool_size = 0;
  Outlook outlook;
  // Where admission estimates needs, the second way for a request to fit a worker. Empty with reservations.
  KvOutlook kv;
  // By class, higher priority first.
  absl::Span<const ClassWait> first_come;
  // Set for ranks that meet in a barrier, the router's or their engine's, compute prompts in chunks and have
  // reported their batch costs; otherwise null.
  const PrefillView* prefill = nullptr;
  // Set where the policy reads it (Policy::uses_prefixes), otherwise null. Defined in
  // router/core/prefix/prefix_view.h.
  const PrefixView* prefixes = nullptr;
  // The rule that a policy with several rules of placement (Policy::placement_rules) must use.
  PlacementRule rule = PlacementRule::kHeadroom;
  FarOutlook far;

  // Returns waits of 0 until a request of the class has been admitted.
  ClassWait FirstCome(int32_t priority) const {
    for (const ClassWait& wait : first_come)
      if (wait.priority == priority) return wait;
    return {priority};
  }
};

// Request snapshot.waiting[waiting_index] is assigned to `worker`.
struct Assignment {
  int32_t waiting_index = 0;
  WorkerIndex worker = 0;
};

// The output of a policy.
struct Decision {
  std::vector<Assignment> assignments;
  // PolicyOptions::stop ended the search, so the result for the same snapshot may differ with more time or on
  // another machine.
  bool stopped_early = false;
  // The level: step time in seconds up to which ranks fill their step with prompt tokens
  // (router/core/prefill). Empty: each rank computes up to its own budget.
  std::optional<double> level_s;

  // Keeps the allocated memory.
  void Clear() {
    assignments.clear();
    stopped_early = false;
    level_s.reset();
  }
};

}  // namespace bfio::core
