// Least requests: in pool order, each request goes to the worker with fewest active requests.
//
// Source: BF-IO paper, section 6.1, baseline "JSQ" by count. Ties rotate: the search starts behind the worker
// used last, as proxies do it, so that equal workers share the load instead of the first getting all ties.
//
// Purpose: baseline; the rule of proxies that do not count tokens. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_LEAST_REQUESTS_LEAST_REQUESTS_H_
#define BFIO_ROUTER_CORE_POLICY_LEAST_REQUESTS_LEAST_REQUESTS_H_

#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class LeastRequestsPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "least_requests"; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  FreeCapacity free_;
  WorkerIndex next_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LEAST_REQUESTS_LEAST_REQUESTS_H_
