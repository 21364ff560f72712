// The scheduler's inputs and outputs: membership, reports, plans. The types that scheduler.h uses. Plain
// data. Units: tokens, steps. Threads: any.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/cost/group_time.h"
#include "router/core/model/request.h"

namespace bfio::core {

// A group's number in its router; never reused.
using GroupIndex = int32_t;

enum class GroupKind {
  // Ranks that meet in a barrier and step together.
  kBarrier,
  // Ranks that step independently.
  kIndependent,
  // Ranks that meet in a barrier inside their engine, which takes requests at any time. The router receives
  // their tokens, and controls only when a prompt is sent.
  kCoupled,
  // Ranks that compute prompts and hand their KV over to ranks of other groups (disaggregated prefill). They
  // step independently, and begin no more prompts than those have room for.
  kPrefill,
};

// No step is common to the ranks.
constexpr bool StepsAlone(GroupKind kind) {
  return kind == GroupKind::kIndependent || kind == GroupKind::kPrefill;
}

// What other groups have room for.
struct Room {
  int64_t requests = std::numeric_limits<int64_t>::max();
  int64_t tokens = std::numeric_limits<int64_t>::max();
};

enum class PlanMode { kPipelined, kLockstep };

enum class CancelOutcome {
  kUnknown,   // no such request
  kDequeued,  // it was waiting and is gone
  kDropped,   // it is on a worker, and the next plan drops it
};

// Capacity and speed of one worker.
struct WorkerSpec {
  // B, at least 1.
  int32_t slots = 0;
  // KV tokens, at least 1.
  int64_t kv_tokens = 0;
  // Takes new requests; false while it drains.
  bool accepts_new = true;
  // Local time of its steps, relative to an ordinary worker's (model/snapshot.h, WorkerView).
  double time_per_token = 1;
  double time_offset = 0;
  // Mean time of a request here from first step to last, in any unit that all workers share.
  double service_time = 1;
  // It keeps the KV of prompts, as long as it has memory, for later prompts with the same prefix.
  bool prefix_cache = false;
  // Identifies the worker across the epochs of its group; 0: unknown. The model of its prefix cache is kept
  // under this number.
  uint64_t member = 0;
  // The cost of its batches, where it has been reported; its granule is not used.
  std::optional<BatchCost> cost;
  // Longest prompt + output of a request here; 0: no limit.
  int64_t max_sequence_tokens = 0;
  // What its group's steps cost beside batches, where that has been reported with `cost`.
  GroupTerms terms;

  int64_t longest() const {
    return max_sequence_tokens == 0 ? std::numeric_limits<int64_t>::max() : max_sequence_tokens;
  }
};

// A request that a worker reports as resident.
struct ResidentRequest {
  RequestId id = 0;
  int64_t kv_tokens = 0;
};

// One rank of a new epoch.
struct EpochMember {
  WorkerSpec spec;
  std::vector<ResidentRequest> resident;
  // Residents that another router placed and that are unknown here. Their prefill_tokens are the tokens that
  // they hold now, including generated_tokens.
  std::vector<RequestSpec> recovered;
};

// A worker's estimate, after a step, of the probability that a request's next token is its last.
struct CompletionHint {
  RequestId id = 0;
  // 0 .. 1.
  double probability = 0;
};

// A request on a worker that has generated no token there yet, so part of its prompt is not computed.
struct PendingPrompt {
  RequestId id = 0;
  // Prompt tokens that are not computed yet; at least 1.
  int64_t tokens = 0;

  friend bool operator==(const PendingPrompt&, const PendingPrompt&) = default;
};

// The prompts of a worker that computes them in chunks, after a step.
struct PrefillReport {
  // Bound of its next step's tokens; at least 0.
  int64_t token_budget = 0;
  // In the order in which it will compute them.
  std::vector<PendingPrompt> prompts;
  // A coupled rank that computes prompts only up to a plan's level, and leaves its budget beyond that unused.
  bool metered = false;

  int64_t pending_tokens() const {
    int64_t tokens = 0;
    for (const PendingPrompt& prompt : prompts) tokens += prompt.tokens;
    return tokens;
  }

  friend bool operator==(const PrefillReport&, const PrefillReport&) = default;
};

// The number of a request's prompt tokens that the worker found in its prefix cache; reported once, with the
// first token.
struct CachedPrompt {
  RequestId id = 0;
  // At least 0.
  int64_t tokens = 0;
};

// One rank's account of one step. Spans are borrowed for the call.
struct StepReport {
  // With a barrier the next one. Without one a report may cover several steps, or none.
  int64_t step = 0;
  // Largest apply_step applied so far.
  int64_t applied_plan = 0;
  // Resident KV tokens during the step.
  int64_t load_tokens = 0;
  absl::Span<const RequestId> finished;
  // Assignments that the worker refused; they return to the front of the pool.
  absl::Span<const RequestId> rejected;
  // Requests that the worker removed for lack of KV memory, before they generated a token in this step.
  absl::Span<const RequestId> preempted;
  // At most one hint for each request that continues; empty where the engine gives none.
  absl::Span<const CompletionHint> hints;
  // No rank has an active request after this step.
  bool group_idle = false;
  // Number of requests that it takes beyond its slots and queues itself; below 0: slots that other clients of
  // the engine use.
  int32_t extra_slots = 0;
  // KV tokens that it can hold beyond its memory, because prompts with equal prefixes share KV (prefix
  // caching).
  int64_t shared_kv_tokens = 0;
  // Share of its prefix cache that it has lost since the last report, in parts per million.
  int64_t cache_lost_ppm = 0;
  // Unset: it computes each prompt whole, in the request's first step.
  std::optional<PrefillReport> prefill;
  // Empty where the worker does not report it.
  absl::Span<const CachedPrompt> cached;
  // What its prefix cache holds, after that loss, where it tells.
  absl::Span<const PrefixChange> cache_changes;
};

struct Placement {
  RequestId id = 0;
  WorkerIndex worker = 0;
  // Steps between entering the pool and apply_step.
  int64_t wait_steps = 0;
};

struct Drop {
  RequestId id = 0;
  WorkerIndex worker = 0;
};

struct Plan {
  // For an independent group: the step of the mean rank at which the plan was made.
  int64_t apply_step = 0;
  // For an independent group, by worker: the number of its part of the plan. Numbers ascend; the worker
  // applies a part at its next step boundary. 0: it has no part. Empty where there is a barrier.
  std::vector<int64_t> apply_steps;
  std::vector<Placement> placements;
  std::vector<Drop> drops;
  // PolicyOptions::stop ended the policy's search, so the same events need not give this plan again.
  bool stopped_early = false;
  // Decision::level_s: each rank computes prompts from apply_step on, until the next plan, as long as its
  // steps end by then.
  std::optional<double> level_s;
};

}  // namespace bfio::core
