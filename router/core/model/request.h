// One request in the decision core. The vocabulary shared by policies, solver and scheduler. Plain data.
// Lengths are in tokens. Threads: any.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/types/span.h"
#include "router/core/model/prefix_blocks.h"

namespace bfio::core {

// The router's id of a request; never reused while the router runs.
using RequestId = uint64_t;

// A worker's index in the current epoch: its rank, 0 .. G-1.
using WorkerIndex = int32_t;
inline constexpr WorkerIndex kNoWorker = -1;

struct RequestSpec {
  RequestId id = 0;
  // s: KV tokens of the request in its first step. At least 1.
  int64_t prefill_tokens = 0;
  // The part of prefill_tokens whose KV another engine has computed and sends (disaggregated prefill). Less
  // than prefill_tokens.
  int64_t computed_tokens = 0;
  // Upper bound of o, the tokens still to generate. At least 1.
  int64_t max_new_tokens = 0;
  // An estimate of o from the client or a predictor; empty: none.
  std::optional<int64_t> predicted_output_tokens;
  // A larger priority is more urgent.
  int32_t priority = 0;
  // The router's number of the request's tenant; 0 is the default tenant.
  uint32_t tenant = 0;
  // Tokens generated in earlier placements whose worker was lost. They are included in prefill_tokens, and in
  // the age from which its length is predicted.
  int64_t generated_tokens = 0;
  // Steps added to its age when the pool is ordered; negative: it counts as younger. Set for calls of agents
  // (router/core/agents).
  int64_t seniority = 0;
  // Among requests that count as equally old, the one with the earlier deadline goes first; microseconds of
  // the router's clock.
  static constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();
  int64_t deadline_us = kNoDeadline;

  // Objective for the time from its arrival to its first token, seconds. Empty: none, or the first token was
  // sent.
  std::optional<double> ttft_objective_s;

  // Steps that it waited before an earlier placement; they still count as its age. Set when it was placed
  // before: its prompt is then already charged to its tenant.
  std::optional<int64_t> waited_steps;

  // Number of consecutive refusals by workers without KV memory that the router counted as free. After
  // kRefusalsBeforeReserving of them the request is placed where all KV tokens that it may need can be
  // reserved, and the worker reserves them.
  int32_t refusals = 0;
  static constexpr int32_t kRefusalsBeforeReserving = 8;
  static bool ReservesAfter(int32_t refusals) { return refusals >= kRefusalsBeforeReserving; }
  bool reserves_kv() const { return ReservesAfter(refusals); }

  // For a request suspected of crashing workers: it is placed on an empty worker, which takes no other
  // request for this number of steps, not counting those that compute prompts. 0: not suspected.
  int32_t steps_alone = 0;
  // Number of the model that generated its first tokens; only a group of that model may continue the request.
  // 0: any model.
  uint32_t model = 0;

  // What the workers of its group must be able to do. A request with kHandsOver waits for a rank that
  // computes prompts for others (GroupKind::kPrefill), which cannot meet kDecodes.
  static constexpr uint32_t kLogprobs = 1, kPassing = 2, kHandsOver = 4, kDecodes = 8;
  static constexpr int kNumNeeds = 4;
  uint32_t needs = 0;

  // The only rank that may run the request, because the client has named that rank; unset: any.
  struct HeldRank {
    int32_t group = 0;
    WorkerIndex worker = 0;
    friend auto operator<=>(const HeldRank&, const HeldRank&) = default;
  };
  std::optional<HeldRank> held_to;

  // The prompt's blocks, for workers that keep the KV of earlier prompts (WorkerSpec::prefix_cache).
  PrefixBlocks prefix;
  absl::Span<const uint64_t> prefix_blocks() const {
    return prefix == nullptr ? absl::Span<const uint64_t>() : absl::Span<const uint64_t>(*prefix);
  }

  // Its prompt tokens that a worker computes.
  int64_t tokens_to_compute() const { return prefill_tokens - computed_tokens; }

  // KV tokens that the request may come to hold, which admission reserves. In its j-th step it holds s + j -
  // 1.
  int64_t kv_reserve_tokens() const { return prefill_tokens + max_new_tokens - 1; }
};

// Which requests a group can run.
struct GroupAbility {
  // Number of its model; 0: unknown, and requests of any model may run there.
  uint32_t model = 0;
  // The RequestSpec::needs that it does not meet.
  uint32_t lacks = 0;
  // The longest prompt + output that any of its workers takes.
  int64_t max_sequence_tokens = std::numeric_limits<int64_t>::max();

  bool Takes(const RequestSpec& request) const {
    return (model == 0 || request.model == 0 || request.model == model) && (request.needs & lacks) == 0 &&
           request.kv_reserve_tokens() < max_sequence_tokens;
  }
};

}  // namespace bfio::core
