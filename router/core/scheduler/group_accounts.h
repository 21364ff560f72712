// The router's account of the requests and tokens on the workers of one group, of any kind. A worker's load
// is kept by dead reckoning: a request in its j-th step counts s + j - 1, so O(1) work per report keeps it
// exact. Reports take precedence: a difference is counted as drift, and divided equally among the requests
// that were resident in the step before. A request whose prompt takes several steps begins with the last of
// them. An assignment occupies its slot and KV from the moment it is planned ("in flight") until a report
// acknowledges its plan. Borrows the pool: refused requests go back there, and lookahead and tenants get the
// observations. Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "router/core/admission/kv_books.h"
#include "router/core/choice/ended_requests.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/fading_mean.h"
#include "router/core/model/request.h"
#include "router/core/prefix/prefix_caches.h"
#include "router/core/prefix/prefix_view.h"
#include "router/core/scheduler/events.h"
#include "router/core/scheduler/request_pool.h"
#include "router/core/scheduler/scheduler_totals.h"
#include "router/core/scheduler/tenant_service.h"

namespace bfio::core {

// The requests that run on each worker, in dense arrays, and how far they have been observed and charged. One
// array of Resident per worker (swap-remove, so its order follows from the events), and for each the tokens
// that are settled. Settling reports exposure to the lookahead and charges generated tokens to tenants. It
// happens when a resident leaves and every kSettleSteps steps, for a share of the workers at each step, so
// that no step costs a pass over all residents. Owned by the scheduler; borrows its lookahead and tenant
// counters. One thread.
class Residents {
 public:
  static constexpr int64_t kSettleSteps = 16;

  Residents(Lookahead* lookahead, TenantService* service) : lookahead_(lookahead), service_(service) {}

  // All requests leave; a new epoch has this many workers.
  void Reset(size_t workers) {
    workers_.assign(workers, {});
    for (Worker& worker : workers_) worker.anew = true;
  }

  // Records the requests that come, leave or change from now on. Changed returns their ids, some twice, until
  // ForgetChanges. The residents that are present already count as one change (ChangedAnew).
  void FollowChanges() { follows_ = true; }
  absl::Span<const RequestId> Changed(WorkerIndex worker) const { return workers_[worker].changed; }
  bool ChangedAnew(WorkerIndex worker) const { return workers_[worker].anew; }
  void ForgetChanges(WorkerIndex worker) {
    workers_[worker].changed.clear();
    workers_[worker].anew = false;
  }

  // Returns the resident's index. Tokens up to `age` have been settled before.
  int32_t Add(WorkerIndex worker, const RequestSpec& spec, int64_t first_step, bool inflight, int64_t age);

  // Its worker has started it in `first_step`. Call again, with a later step, where that step has generated
  // no token.
  void Start(WorkerIndex worker, int32_t index, int64_t first_step);
  void Drop(WorkerIndex worker, int32_t index) {
    workers_[worker].residents[index].dropped = true;
    Change(worker, workers_[worker].residents[index].id);
  }
  // The worker's hint about its next token, after step `step`. REQUIRES: started by then.
  void Hint(WorkerIndex worker, int32_t index, int64_t step, double probability);

  // It was active after `step`, or not yet started; or it `ended` in this step. Call before Remove.
  void Settle(WorkerIndex worker, int32_t index, int64_t step, bool ended = false);
  void SettleAll(WorkerIndex worker, int64_t step);

  // Returns the id of the resident that took its index, if one did.
  std::optional<RequestId> Remove(WorkerIndex worker, int32_t index);

  absl::Span<const Resident> Of(WorkerIndex worker) const { return workers_[worker].residents; }
  // Age after `step` of a resident that is active then, or started later.
  int64_t Age(WorkerIndex worker, int32_t index, int64_t step) const {
    return AgeAfter(workers_[worker].residents[index], step);
  }

 private:
  static constexpr size_t kMostChanges = 64;

  struct Note {
    // Age up to which it has been observed and charged.
    int64_t age = 0;
    HintTrail trail;
  };
  struct Worker {
    std::vector<Resident> residents;
    std::vector<Note> notes;
    std::vector<RequestId> changed;
    bool anew = true;
  };
  void Change(WorkerIndex worker, RequestId id) {
    Worker& w = workers_[worker];
    if (!follows_ || w.anew) return;
    w.changed.push_back(id);
    // The changes have not been read for a long time; one change for all residents is cheaper.
    if (w.changed.size() <= 2 * w.residents.size() + kMostChanges) return;
    w.changed.clear();
    w.anew = true;
  }
  static int64_t AgeAfter(const Resident& resident, int64_t step);

  Lookahead* lookahead_;
  TenantService* service_;
  std::vector<Worker> workers_;
  bool follows_ = false;
};

// Recent statistics of a group's traffic, for planning prompts. The scheduler has no clock, so rates are per
// step; the mean planned step time converts them to seconds. All values follow from events, so a replay has
// the same numbers. Plain data. Threads: any.
struct PromptTraffic {
  // Weights of one planned step, one request, and one step of a prompt, in the means.
  static constexpr double kStepRateShare = 1.0 / 1024;
  static constexpr double kStepShare = 1.0 / 64;
  static constexpr double kRequestShare = 1.0 / 256;
  static constexpr double kChunkShare = 1.0 / 256;

  // Requests placed per planned step; the prompt tokens that have to be computed for them, and the squares of
  // these.
  FadingMean placed_per_step;
  FadingMean prompt_tokens;
  FadingMean prompt_squares;
  // Tokens that a request had generated when it ended.
  FadingMean output_tokens;
  // Time of a step that was planned with a level, seconds.
  FadingMean step_s;
  // Tokens of a prompt computed in one step that did not complete it.
  FadingMean chunk_tokens;

  void Planned(int64_t placed) { placed_per_step.Add(static_cast<double>(placed), kStepRateShare); }
  void PlannedSeconds(double seconds) { step_s.Add(seconds, kStepShare); }
  void Placed(int64_t prompt) {
    const auto tokens = static_cast<double>(prompt);
    prompt_tokens.Add(tokens, kRequestShare);
    prompt_squares.Add(tokens * tokens, kRequestShare);
  }
  void Ended(int64_t generated) { output_tokens.Add(static_cast<double>(generated), kRequestShare); }
  void Computed(int64_t tokens) { chunk_tokens.Add(static_cast<double>(tokens), kChunkShare); }
};

// The steps for which a plan is made. Vectors are indexed by worker.
struct PlanSteps {
  // The step by the group's count, and by the pool's clock; the last one that all ranks have reported.
  int64_t step = 0;
  int64_t clock = 0;
  int64_t reported = 0;
  // The worker's step in which its part is expected to be applied, whatever other plans are in flight.
  std::vector<int64_t> targets;
  // The apply_step of its part.
  std::vector<int64_t> numbers;
  // The policy is called for a level although no request waits.
  bool level = false;
};

class GroupAccounts {
 public:
  struct Worker {
    // One placement or drop of a plan that this worker has not acknowledged.
    struct Inflight {
      int64_t apply_step;
      RequestId id;
      bool drop;
    };
    WorkerSpec spec;
    int32_t active = 0;
    // Sum over active requests of (prefill - first_step): load in step k is base + active * k.
    int64_t base = 0;
    // The part of `base` that the account does not explain: the differences to reports, including the shares
    // assigned to requests.
    int64_t drift = 0;
    int64_t reserved_kv = 0;
    // Placed requests that run alone (RequestSpec::steps_alone).
    int32_t alone = 0;
    int64_t last_step = 0;
    // The load in the last report, including requests that ended in its step.
    int64_t reported_load = 0;
    // Without a barrier: the largest apply_step of its plans, and of those that it has applied.
    int64_t planned_step = 0;
    int64_t applied = 0;
    // The last report said that the group is idle.
    bool idle = true;
    // As of the last report.
    int32_t extra_slots = 0;
    int64_t shared_kv_tokens = 0;
    // Placements among `inflight`, and the sum of (prefill - first_step) over them.
    int32_t inflight_placements = 0;
    int64_t inflight_base = 0;
    std::optional<PrefillReport> prefill;
    // Planned, not acknowledged; in order of apply_step.
    std::vector<Inflight> inflight;
    // Cancellations waiting for the next plan.
    std::vector<RequestId> drops;

    int32_t placed() const { return active + inflight_placements; }
    // Number of KV tokens of requests that it can hold.
    int64_t kv_tokens() const { return spec.kv_tokens + shared_kv_tokens; }
    int32_t free_slots() const {
      const int32_t slots = spec.slots + extra_slots;
      return spec.accepts_new && alone == 0 && slots > placed() ? slots - placed() : 0;
    }
    // Enters a request that is placed here, or (sign -1) removes it.
    void Reserve(const RequestSpec& request, int32_t sign = 1) {
      reserved_kv += sign * request.kv_reserve_tokens();
      if (request.steps_alone > 0) alone += sign;
    }
  };

  // Both outlive this.
  GroupAccounts(RequestPool* pool, SchedulerTotals* totals)
      : pool_(pool), totals_(totals), residents_(&pool->lookahead(), &pool->service()) {}

  // --- membership ---

  // Restarts with these workers. Returns the ids of placed requests that none of them holds, ascending.
  std::vector<RequestId> Open(absl::Span<const EpochMember> members);

  // --- requests ---

  // The next plan drops it from its worker. REQUIRES: WorkerOf(id).
  void Cancel(RequestId id);
  // Enter a plan's placements and drops.
  void Place(const RequestSpec& spec, int64_t enqueued_step, WorkerIndex worker, const PlanSteps& steps);
  void SendDrops(const PlanSteps& steps, Plan& plan);

  // --- reports ---

  // INVALID_ARGUMENT when the report contradicts the accounts; `planned` is the largest apply_step of a plan
  // for this worker.
  absl::Status Check(WorkerIndex worker, const StepReport& report, int64_t planned, bool barrier) const;
  // REQUIRES: Check accepts it.
  void Take(WorkerIndex worker, const StepReport& report);

  // --- views ---

  int32_t num_workers() const { return static_cast<int32_t>(workers_.size()); }
  absl::Span<const Worker> workers() const { return workers_; }
  Worker& worker(WorkerIndex index) { return workers_[index]; }
  const Worker& worker(WorkerIndex index) const { return workers_[index]; }
  absl::Span<const Resident> ResidentsOf(WorkerIndex index) const { return residents_.Of(index); }
  int64_t placed() const { return static_cast<int64_t>(placed_.size()); }
  // Sum over all workers.
  int64_t free_slots() const;
  std::optional<WorkerIndex> WorkerOf(RequestId id) const;
  // REQUIRES: WorkerOf(id).
  const RequestSpec& SpecOf(RequestId id) const { return placed_.at(id).spec; }
  bool HasDrops() const;

  // --- prompts ---

  struct PromptOn {
    // Tokens of the whole prompt, and of the part that is not computed.
    int64_t tokens = 0, left = 0;
    // The next step that computes it; for a request in flight the step in which it is expected to start.
    int64_t first_step = 0;
    // The step for which it was placed.
    int64_t planned_for = 0;
    bool inflight = false;
    // When it entered the pool, on the pool's clock, and its RequestSpec::ttft_objective_s.
    int64_t enqueued_step = 0;
    std::optional<double> ttft_objective_s;
  };
  // The prompts that the worker has not computed, in its order, then those in flight. REQUIRES: it reports
  // its prompts.
  std::vector<PromptOn> PromptsOn(WorkerIndex worker) const;
  // Some request on some worker has not generated its first token there, or is in flight.
  bool AnyPrompt() const;
  // The requests that came, left or changed on the worker since the last call, including those whose prompt
  // is not computed. The first call returns all.
  void TakeChanges(WorkerIndex worker, KvChanges& changes);
  // For each resident of the worker: the steps beyond one that its prompt may still take, if chunks keep
  // their recent size.
  void PromptSteps(WorkerIndex worker, std::vector<int64_t>& steps) const;
  // The same for a prompt of `tokens` tokens that is placed now. 0 where prompts are computed whole.
  int64_t StepsOfPrompt(int64_t tokens) const;
  // The level of the plan that is in force in a step; empty: there is no plan, or it has no level.
  std::optional<double> LevelAt(int64_t step) const;
  // A plan of a barrier group has been made; it placed `placed` requests.
  void Planned(int64_t step, std::optional<double> level_s, int64_t placed);
  // Every rank computes prompts up to levels (PrefillReport::metered).
  bool AllMetered() const;
  // Sets the level of a coupled group, whose ranks count their own steps.
  void SetLevel(std::optional<double> level_s);
  // A step of a coupled group has ended; `placed` requests were placed in it.
  void CountStep(int64_t placed);
  const PromptTraffic& traffic() const { return traffic_; }
  // Fills the policy's input about prefixes.
  void ReadPrefixes(PrefixView& view) const;
  // Requests that ended by themselves or at their bound.
  const EndedRequests& ended() const { return ended_; }

 private:
  enum class Where : uint8_t { kInflight, kActive };
  struct Placed {
    RequestSpec spec;
    WorkerIndex worker = 0;
    Where where = Where::kInflight;
    // In flight: the step in which it is expected to start. Active: the step in which it first ran, so that
    // its load in step k is spec.prefill_tokens + k - first_step.
    int64_t first_step = 0;
    // In flight: the apply_step of its plan.
    int64_t plan = 0;
    // Its index among the worker's residents.
    int32_t index = 0;
    // Active: its share of the worker's drift, tokens.
    int64_t drift = 0;
    // When it entered the pool, for its age if it returns there.
    int64_t enqueued_step = 0;
    // The step of this epoch for which it was placed.
    int64_t planned_for = 0;
    // A plan has dropped it.
    bool dropped = false;
    // Number of its prompt tokens in its worker's cache when it was placed, by PrefixCaches::Find.
    int64_t cached_tokens = 0;
  };
  using PlacedMap = absl::flat_hash_map<RequestId, Placed>;

  // A plan's step, and its level.
  struct PlannedLevel {
    int64_t step = 0;
    std::optional<double> level_s;
  };

  // The state of a new epoch while it is being built.
  struct Opening {
    Residents before;
    PlacedMap kept;
  };

  // Whether its tenant is charged for the prompt when it is placed.
  static bool PaysPrompt(const RequestSpec& spec) { return spec.generated_tokens == 0 && !spec.waited_steps; }
  // Places the unknown requests that a member of the new epoch holds.
  void Recover(WorkerIndex index, absl::Span<const RequestSpec> recovered, Worker& worker, PlacedMap& kept);
  void Keep(WorkerIndex index, const ResidentRequest& resident, Worker& worker, Opening& opening);
  // Null: the request is not placed there, or in the other state.
  const Placed* Find(WorkerIndex worker, RequestId id, Where where) const {
    const auto it = placed_.find(id);
    const bool found = it != placed_.end() && it->second.worker == worker && it->second.where == where;
    return found ? &it->second : nullptr;
  }
  // Finds `id` if it is placed on `worker`; otherwise counts it as unknown and returns end().
  PlacedMap::iterator FindOn(WorkerIndex worker, RequestId id);
  void OpenCaches();
  // Removes a placed request, also from its worker's account and residents.
  void Remove(PlacedMap::iterator it);
  void Acknowledge(WorkerIndex index, const StepReport& report);
  // A placement of a plan has begun in this report's step.
  void Start(WorkerIndex index, const StepReport& report, Placed& placed);
  void TakeRejected(WorkerIndex index, const StepReport& report);
  void TakePreempted(WorkerIndex index, const StepReport& report);
  void TakeFinished(WorkerIndex index, const StepReport& report);
  void TakeDrift(WorkerIndex index, int64_t step, int64_t tokens);
  // Requests without a first token after this step begin a step later.
  void TakePending(WorkerIndex index, const StepReport& report);
  // Time of the next step by the ranks' batch costs, if each computes at most so many prompt tokens: that of
  // the slowest rank. 0: not known.
  double NextStepSeconds(int64_t most_prompt_tokens) const;
  // The number of pending prompt tokens that the step has computed.
  void CountChunks(WorkerIndex index, const StepReport& report);
  // Compares what workers found in their prefix caches with what was expected.
  void TakeCached(WorkerIndex index, const StepReport& report);
  // Whether its worker has computed its prompt by the step.
  static bool Computed(const Placed& placed, int64_t step) {
    return placed.where == Where::kActive && placed.first_step <= step;
  }
  // A request has left its worker after its step `step`. Its generated tokens take cache memory; prompt
  // tokens that it has not computed are not in the cache.
  void EndCached(const Placed& placed, int64_t step);
  // Calls use(placed, tokens) for the prompts that the worker has not computed: those of its last report,
  // with the tokens left according to it, in its order; then those in flight.
  template <class Use>
  void ForEachPrompt(WorkerIndex index, Use use) const;
  // Prompt tokens that a placed request's worker is expected to compute; and those that are left according to
  // its report. At least 1.
  int64_t LeftOf(const Placed& placed) const;
  int64_t LeftOf(const Placed& placed, int64_t reported) const;
  void TakeHints(WorkerIndex index, const StepReport& report);
  // Requests that run alone have completed a step.
  void CountStepsAlone(WorkerIndex index, const StepReport& report);

  RequestPool* const pool_;
  SchedulerTotals* const totals_;
  PlacedMap placed_;
  std::vector<Worker> workers_;
  Residents residents_;
  // The levels of plans that a worker may not have executed yet, and of the plan before; ascending by step.
  std::vector<PlannedLevel> levels_;
  PromptTraffic traffic_;
  EndedRequests ended_;
  PrefixCaches caches_;
  // Tokens of a placed prompt that were expected in its worker's cache.
  FadingMean cached_tokens_;
};

}  // namespace bfio::core
