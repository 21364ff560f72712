// Least work: the oldest request goes to the worker that has least to compute with it.
//
// Purpose: placement for ranks that step independently and share prompts' prefixes (engines with prefix
// caching). The work of worker g with the request, in tokens that it computes:
//
//   pending prompt tokens of g + tokens of the request's prompt that g's cache does not hold + n_g * o
//
// n_g being the number of its requests and o the mean output. A token costs about the same in a prompt as in
// a decode, so no weight is needed: where outputs are long, requests spread by number (least_requests), and
// where prompts are long and shared, a request goes where its prefix is, until that worker has more to do
// than the prefix saves.
//
// Ties: fewest requests, then in turn. Threads: as Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_
#define BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_

#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class LeastWorkPolicy final : public Policy {
 public:
  absl::string_view name() const override { return "least_work"; }
  bool uses_prefixes() const override { return true; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  WorkerIndex Choose(const Snapshot& snapshot, const WaitingView& request);

  FreeCapacity free_;
  // By worker: prompt tokens that it has to compute, those of this plan included.
  std::vector<int64_t> pending_;
  WorkerIndex next_ = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_
