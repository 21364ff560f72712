// One request, as the decision core sees it.
//
// Purpose: the vocabulary shared by policies, solver and scheduler. Plain data, no behaviour. Lengths are in
// tokens. Threads: any.
#ifndef BFIO_ROUTER_CORE_MODEL_REQUEST_H_
#define BFIO_ROUTER_CORE_MODEL_REQUEST_H_

#include <cstdint>
#include <limits>
#include <optional>

namespace bfio::core {

// The router's name of a request; never reused in a router's life.
using RequestId = uint64_t;

// A worker's index in the current epoch: its rank, 0 .. G-1.
using WorkerIndex = int32_t;

struct RequestSpec {
  RequestId id = 0;
  // s: KV tokens resident in the request's first step. At least 1.
  int64_t prefill_tokens = 0;
  // Upper bound on o, the tokens still to generate. At least 1.
  int64_t max_new_tokens = 0;
  // A guess at o from the client or a predictor, where there is one.
  std::optional<int64_t> predicted_output_tokens;
  // Larger is more urgent.
  int32_t priority = 0;
  // Whose request it is: the router's number for a tenant; 0 is the default tenant.
  uint32_t tenant = 0;
  // Tokens it made in earlier placements, whose worker was lost. They are part of prefill_tokens by now, and
  // of what it is known to have outlived.
  int64_t generated_tokens = 0;
  // Steps by which it counts as older than it is, negative: younger. Of an agent's calls
  // (router/core/agents).
  int64_t seniority = 0;
  // Of requests that count as equally old the one with the earlier deadline goes first; microseconds of the
  // router's clock.
  static constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();
  int64_t deadline_us = kNoDeadline;

  // Set where it has been placed before, and its prompt charged to its tenant: the steps it has waited so
  // far. It continues with that age.
  std::optional<int64_t> waited_steps;

  // How often in a row a worker refused it for want of KV that the router believed to be there. After so many
  // times it is placed where all that it may come to hold can be reserved, and the worker reserves it.
  int32_t refusals = 0;
  static constexpr int32_t kRefusalsBeforeReserving = 8;
  static bool ReservesAfter(int32_t refusals) { return refusals >= kRefusalsBeforeReserving; }
  bool reserves_kv() const { return ReservesAfter(refusals); }

  // Of a suspect of crashing workers: it is placed on an empty worker, which takes no other request until the
  // request has lived through so many steps there, those that compute prompts not counted. 0: no suspect.
  int32_t steps_alone = 0;
  // The number of the model that its first tokens are of: only a group of that model continues it. 0: any.
  uint32_t model = 0;

  // KV tokens the request may come to hold: what admission reserves for it. In its j-th step it holds s + j
  // - 1.
  int64_t kv_reserve_tokens() const { return prefill_tokens + max_new_tokens - 1; }
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_MODEL_REQUEST_H_
