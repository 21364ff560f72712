// Least work: a request goes to the worker that has least to compute with it, the oldest first.
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
// Where capacity is short. A slot that falls free on a worker is best used by a request whose prefix is
// there. So of the oldest of the highest class, those with more of their prompt on a worker with room than on
// the mean worker go first, and those whose prefix is only on full workers go last. A request that has waited
// wait_ratio times as long as the 99th percentile under first come, first served (Snapshot::first_come) goes
// before all others.
//
// Ties: fewest requests, then in turn. Threads: as Policy. Cost: O(kLook * workers) look-ups in caches, and
// those of the requests that are placed.
#ifndef BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_
#define BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_

#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class LeastWorkPolicy final : public Policy {
 public:
  explicit LeastWorkPolicy(double wait_ratio) : wait_ratio_(wait_ratio) {}

  absl::string_view name() const override { return "least_work"; }
  bool uses_prefixes() const override { return true; }
  bool uses_first_come_waits() const override { return true; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  // A waiting request by how well workers with room suit it.
  struct Choice {
    int32_t index = 0;
    bool overdue = false;
    // Its prefix is on full workers only.
    bool away = false;
    // Tokens that the best worker with room has of its prompt, less what the mean worker has.
    double gain = 0;
  };

  void FindChoices(const Snapshot& snapshot);
  Choice ChoiceOf(const Snapshot& snapshot, int32_t index) const;
  void Place(const Snapshot& snapshot, int32_t index, Decision& decision);
  WorkerIndex Choose(const Snapshot& snapshot, const WaitingView& request);

  const double wait_ratio_;
  FreeCapacity free_;
  // By worker: prompt tokens that it has to compute, those of this plan included.
  std::vector<int64_t> pending_;
  WorkerIndex next_ = 0;
  // Scratch.
  std::vector<Choice> choices_;
  std::vector<char> placed_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_
