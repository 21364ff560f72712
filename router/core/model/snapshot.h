// What a policy sees and what it answers.
//
// Purpose: the one interface between scheduling state and decision. A Snapshot is an immutable view of the
// group as it will stand when the plan is applied: loads are projected to that step, assignments in flight
// are already inside. Ownership: a Snapshot borrows; it is valid during one Policy::Decide call only.
// Threads: any, plain data.
#ifndef BFIO_ROUTER_CORE_MODEL_SNAPSHOT_H_
#define BFIO_ROUTER_CORE_MODEL_SNAPSHOT_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/kv_capacity.h"
#include "router/core/model/request.h"

namespace bfio::core {

struct WorkerView {
  // L_g at the plan's step, before any new assignment, in tokens: resident requests and those in flight.
  int64_t load_tokens = 0;
  // Requests resident or in flight.
  int32_t active = 0;
  // cap[g]: requests this worker can still take; 0 when it drains.
  int32_t free_slots = 0;
  // KV tokens that are not reserved. Negative where admission has admitted more than could run to the end.
  int64_t free_kv_tokens = 0;
  // KV tokens in all; what free_kv_tokens grows to when the worker is empty.
  int64_t total_kv_tokens = std::numeric_limits<int64_t>::max();
  // False while it drains: its load does not count in the others' level.
  bool accepts_new = true;
  // Local time of a step in units of a reference worker's time per token: time_offset + time_per_token *
  // load. Unequal GPUs are balanced by this, not by tokens.
  double time_per_token = 1;
  double time_offset = 0;
  // What a mean request takes here from first step to last, in a unit that all workers share: of chains of
  // servers, which differ in it.
  double service_time = 1;
  // What each prompt token placed here also adds to time_offset: where prompts are computed whole, its cost
  // over the steps of a mean request.
  double prefill_weight = 0;
  // What each prompt token placed here adds in all, at the plan's step.
  double load_rate() const { return time_per_token + prefill_weight; }
  // Local time of a step at this load.
  double TimeAt(double tokens) const { return time_offset + time_per_token * tokens; }
  // Local time of its step, with a request of `more` tokens placed here.
  double Time(int64_t more = 0) const {
    return TimeAt(static_cast<double>(load_tokens)) + load_rate() * static_cast<double>(more);
  }
  // Counts `tokens` of a request that is still to come.
  void Precount(int64_t tokens) {
    load_tokens += tokens;
    time_offset += prefill_weight * static_cast<double>(tokens);
  }
};

struct WaitingView {
  RequestId id = 0;
  // s, the load the request adds in its first step, in tokens.
  int64_t prefill_tokens = 0;
  // KV tokens it may come to need: a worker with so many free can take it whatever Snapshot::kv says.
  int64_t kv_reserve_tokens = 0;
  // Step at which the request entered the pool; Snapshot::step minus this is its waiting age in steps.
  int64_t enqueued_step = 0;
  // RequestSpec's. This determines its order; how long it waits does not depend on it.
  int64_t seniority = 0;
  int64_t senior_step() const { return enqueued_step - seniority; }
  int64_t deadline_us = RequestSpec::kNoDeadline;
  int32_t priority = 0;
  std::optional<int64_t> predicted_output_tokens;
  int64_t max_new_tokens = 0;
  // Tokens made in earlier placements (RequestSpec).
  int64_t generated_tokens = 0;
  uint32_t tenant = 0;
  // Weighted tokens its tenant has been served above the least served tenant that has a request waiting.
  double tenant_excess_tokens = 0;
  // Row of Outlook::curves for how long it may run; 0 when there is no outlook.
  int32_t curve = 0;
  // It takes all of kv_reserve_tokens at once (RequestSpec).
  bool reserves_kv = false;
  // Row of Snapshot::kv.need.
  int32_t kv_need = 0;
  KvDemand kv() const { return {kv_reserve_tokens, kv_need}; }
  // RequestSpec::steps_alone: placed before any policy is asked, wherever it fits.
  bool runs_alone = false;
  // A group has decided since it came, while others had free slots too.
  bool passed_over = false;
};

// What ranks have to compute of prompts (router/core/prefill/prefill_view.h).
struct PrefillView;

// What the lookahead expects of the steps after the plan's, h = 1 .. H (router/core/lookahead fills it).
// Rows have H + 1 entries, h = 0 being the plan's own step. All spans are empty when horizon is 0.
struct Outlook {
  // H.
  int32_t horizon = 0;
  // [g * (H + 1) + h]: expected load of worker g's present requests at step + h, tokens. A request that is
  // still active h steps on has grown by h.
  absl::Span<const double> load;
  // [g * (H + 1) + h]: probability that none of worker g's present requests ends before step + h.
  absl::Span<const double> quiet;
  // [c * (H + 1) + h]: probability that a request admitted by this plan is still active at step + h; 1 at
  // h = 0. The load request i adds to its worker at step + h is (s_i + h) * curves[curve_i][h].
  absl::Span<const double> curves;
};

struct Snapshot {
  // The step the plan will be applied at.
  int64_t step = 0;
  // By rank.
  absl::Span<const WorkerView> workers;
  // The waiting pool: higher priority first, then by senior_step, which is oldest first but for agents.
  absl::Span<const WaitingView> waiting;
  // How many wait in all; `waiting` shows the first of them. 0: as many as it shows.
  int64_t pool_size = 0;
  Outlook outlook;
  // Where admission is not by reservation: the other way for a request to fit a worker.
  KvOutlook kv;
  // The reference wait: 99 % of the requests that have been admitted lately, in any group, would have waited
  // at most so many steps if the oldest were always first. 0 before there were any.
  int64_t first_come_p99 = 0;
  // Of ranks that meet in a barrier, compute prompts in chunks and have told what their batches cost; else
  // null.
  const PrefillView* prefill = nullptr;
};

// Request snapshot.waiting[waiting_index] goes to worker `worker`.
struct Assignment {
  int32_t waiting_index = 0;
  WorkerIndex worker = 0;
};

// What a policy answers.
struct Decision {
  std::vector<Assignment> assignments;
  // PolicyOptions::stop ended the search: with more time, or on another machine, the answer for the same
  // snapshot may be another.
  bool stopped_early = false;
  // How far it may be from the best one, where that was proven (PolicyOptions::gap_every; solver/gap_probe.h
  // has the unit).
  std::optional<double> gap;
  // The time up to which ranks fill their step with prompt tokens (router/core/prefill); none: as many as
  // each rank's own budget allows.
  std::optional<double> level_s;

  // Keeps the memory.
  void Clear() {
    assignments.clear();
    stopped_early = false;
    gap.reset();
    level_s.reset();
  }
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_MODEL_SNAPSHOT_H_
