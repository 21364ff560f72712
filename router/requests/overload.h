// Overload control: whether what has been accepted leaves capacity for one request more.
//
// Purpose: three bounds on what waits: requests (the scheduler's pool), bytes of prompts, and KV that
// accepted requests may come to need. Counting only; the caller charges a request when it is accepted and
// discharges it at its end. Threads: CheckPool and refused_early from any; all others belong to the decision
// thread.
#ifndef BFIO_ROUTER_REQUESTS_OVERLOAD_H_
#define BFIO_ROUTER_REQUESTS_OVERLOAD_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "router/requests/request_table.h"

namespace bfio::router {

struct OverloadOptions {
  int64_t max_waiting = 4096;
  // Prompts of requests that have given no token yet.
  int64_t max_waiting_bytes = int64_t{512} << 20;
  // KV that waiting requests may come to need, in multiples of what the groups have; 0: any.
  double max_waiting_kv = 64;
};

class OverloadControl {
 public:
  explicit OverloadControl(const OverloadOptions& options) : options_(options) {}

  // RESOURCE_EXHAUSTED, counted, when the pool was full as the decision thread last looked: a flood is
  // refused where it costs that thread nothing.
  absl::Status CheckPool();
  void SetWaiting(int64_t waiting) { waiting_.store(waiting, std::memory_order_relaxed); }
  // Refused by CheckPool.
  int64_t refused_early() const { return refused_early_.load(std::memory_order_relaxed); }

  // KV of all groups, tokens; 0 before the first epoch, when KV bounds nothing.
  void SetCapacity(int64_t kv_tokens) { kv_tokens_ = kv_tokens; }

  // RESOURCE_EXHAUSTED.
  absl::Status Check(const RequestRecord& record) const;
  void Charge(RequestRecord& record);
  // Its prompt does not wait any more: it has given a token.
  void OnFirstToken(RequestRecord& record);
  void Discharge(RequestRecord& record);

  int64_t waiting_bytes() const { return waiting_bytes_; }
  int64_t committed_kv() const { return committed_kv_; }

 private:
  const OverloadOptions options_;
  std::atomic<int64_t> waiting_{0};
  std::atomic<int64_t> refused_early_{0};
  int64_t waiting_bytes_ = 0;
  int64_t committed_kv_ = 0;
  int64_t kv_tokens_ = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_OVERLOAD_H_
