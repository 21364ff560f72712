// What became of requests, summed since the router started. Plain data; fields as in v1::RequestTotals, which
// says more about each.
#ifndef BFIO_ROUTER_REQUESTS_REQUEST_TOTALS_H_
#define BFIO_ROUTER_REQUESTS_REQUEST_TOTALS_H_

#include <cstdint>

namespace bfio::router {

struct RequestTotals {
  int64_t accepted = 0;
  int64_t completed = 0;
  // Cancelled by the client, its deadline or its disconnect.
  int64_t cancelled = 0;
  int64_t aborted = 0;
  // Ended by the router with an error after acceptance.
  int64_t failed = 0;
  // Placed again after their worker was lost.
  int64_t replayed = 0;
  int64_t refused_pool_full = 0;
  int64_t refused_invalid = 0;
  // Lost their worker and were not placed again. Part of `failed`.
  int64_t replays_refused = 0;
  // Of those: several workers failed while running them (suspicion.h).
  int64_t suspects_ended = 0;
  // Tokens that workers count and no stream got, and that came twice; anything but 0 is a fault.
  int64_t tokens_lost = 0;
  int64_t tokens_duplicated = 0;
  int64_t resumed = 0;
  int64_t resume_refused = 0;
  int64_t resume_expired = 0;
  // Recovered from workers that held them for an earlier router, and started again because no worker held
  // them.
  int64_t adopted = 0;
  int64_t restarted = 0;
  int64_t refused_tenant = 0;
  int64_t refused_memory = 0;
  int64_t slow_readers = 0;
  int64_t preempted = 0;
  int64_t agent_calls = 0;
  int64_t refused_parent_deadline = 0;
  int64_t refused_by_workers = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_TOTALS_H_
