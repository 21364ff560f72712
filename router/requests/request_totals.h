// Counts of requests by outcome since the router started. Plain data; the fields are those of
// v1::RequestTotals, where each is explained.
#pragma once

#include <cstdint>

namespace bfio::router {

struct RequestTotals {
  int64_t accepted = 0;
  int64_t completed = 0;
  // Ended by the client's cancellation, deadline or disconnect.
  int64_t cancelled = 0;
  int64_t aborted = 0;
  // Ended by the router with an error after acceptance.
  int64_t failed = 0;
  // Placed again after the loss of their worker.
  int64_t replayed = 0;
  int64_t refused_pool_full = 0;
  int64_t refused_invalid = 0;
  // Lost their worker and were not placed again; included in `failed`.
  int64_t replays_refused = 0;
  // Part of replays_refused: several workers failed while running them (Suspicion).
  int64_t suspects_ended = 0;
  // Tokens that workers have counted and no stream received, and tokens received twice; not 0 means a fault.
  int64_t tokens_lost = 0;
  int64_t tokens_duplicated = 0;
  int64_t resumed = 0;
  int64_t resume_refused = 0;
  int64_t resume_expired = 0;
  // Recovered from workers that held them for an earlier router; started again because no worker held them.
  int64_t recovered = 0;
  int64_t restarted = 0;
  int64_t refused_tenant = 0;
  int64_t refused_memory = 0;
  int64_t slow_readers = 0;
  // Not placed within RequestOptions::max_queue_time; included in `failed`.
  int64_t queue_timeouts = 0;
  int64_t preempted = 0;
  // Prompts computed by one rank for another; those that waited too long for it; those that it could not use;
  // prompts left to the rank that decodes, which computes them sooner.
  int64_t handed_over = 0, hand_offs_expired = 0, hand_offs_failed = 0, not_handed_over = 0;
  int64_t agent_calls = 0;
  int64_t refused_parent_deadline = 0;
  int64_t refused_by_workers = 0;
  int64_t ttft_objectives_met = 0;
  int64_t ttft_objectives_missed = 0;
};

}  // namespace bfio::router
