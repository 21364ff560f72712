// Overload control: whether accepted requests leave capacity for another one. Three bounds on waiting work:
// requests (the scheduler's pool), bytes of prompts, and the KV tokens that accepted requests may need. Only
// counts: the caller charges a request when it is accepted and discharges it when it ends. Threads: CheckPool
// and refused_early: any; all others: the decision thread's.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "common/base/fair_share.h"
#include "router/requests/request_table.h"

namespace bfio::router {

struct OverloadOptions {
  int64_t max_waiting = 4096;
  // Bound on the prompt bytes of requests without a first token.
  int64_t max_waiting_bytes = int64_t{512} << 20;
  // Bound on the KV tokens that waiting requests may need, in multiples of the groups' capacity; 0: no bound.
  double max_waiting_kv = 64;
};

class OverloadControl {
 public:
  explicit OverloadControl(const OverloadOptions& options)
      : options_(options),
        requests_(FairShares::WholeWhileAlone(options.max_waiting)),
        bytes_(FairShares::WholeWhileAlone(options.max_waiting_bytes)) {}

  // For a call with `outputs` outputs; `held`: they may run on one rank only. RESOURCE_EXHAUSTED, counted,
  // when the pool was full at the decision thread's last update. So a flood of requests is refused before it
  // reaches that thread. INVALID_ARGUMENT when not even the empty pool could take the call.
  absl::Status CheckPool(const std::string& tenant, int64_t outputs, bool held);
  bool IsFull(int64_t waiting) const { return waiting >= options_.max_waiting; }
  void SetWaiting(int64_t waiting) { waiting_.store(waiting, std::memory_order_relaxed); }
  // Number of requests that CheckPool has refused.
  int64_t refused_early() const { return refused_early_.load(std::memory_order_relaxed); }

  // KV capacity of all groups, in tokens; 0 before the first epoch: no KV bound.
  void SetCapacity(int64_t kv_tokens) {
    kv_tokens_ = kv_tokens;
    kv_.set_whole(static_cast<int64_t>((1 + options_.max_waiting_kv) * static_cast<double>(kv_tokens)));
  }

  // RESOURCE_EXHAUSTED when the tenant has its share of the waiting requests.
  absl::Status CheckShare(const std::string& tenant);
  // RESOURCE_EXHAUSTED when the request exceeds a bound, or its tenant's share of it. `own_kv`: KV
  // tokens charged for the other outputs of its call.
  absl::Status Check(const RequestRecord& record, int64_t own_kv = 0) const;
  // `most_kv`: a request that a worker holds counts for no more KV tokens than are left there.
  void Charge(RequestRecord& record, int64_t most_kv = std::numeric_limits<int64_t>::max());
  // The request has its first token, so its prompt no longer counts as waiting.
  void OnFirstToken(RequestRecord& record);
  void Discharge(RequestRecord& record);

  int64_t waiting_bytes() const { return bytes_.used(); }
  int64_t committed_kv() const { return kv_.used(); }

 private:
  const OverloadOptions options_;
  std::atomic<int64_t> waiting_{0};
  std::atomic<int64_t> refused_early_{0};
  // Hash of the first tenant, and whether CheckPool has refused a request of another one.
  std::atomic<size_t> first_tenant_{0};
  std::atomic<bool> refused_another_{false};
  // Of the requests without a first token: their number, and the bytes of their prompts.
  FairShares requests_, bytes_;
  // The KV tokens of accepted requests: of the groups' capacity, and max_waiting_kv times as much.
  FairShares kv_ = FairShares::WholeWhileAlone(0);
  int64_t kv_tokens_ = 0;
};

}  // namespace bfio::router
