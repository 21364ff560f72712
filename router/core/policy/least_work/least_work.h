// Least work: the oldest request goes to the worker that has least to compute with it.
//
// Purpose: placement for ranks that step independently and share prompts' prefixes (engines with prefix
// caching). The work of worker g with the request, in tokens that it computes:
//
//   pending prompt tokens of g + (1 + h) * tokens of the request's prompt that g's cache does not hold + n_g
//   * o
//
// n_g being the number of its requests, o the mean output, and h the share of prompts' tokens that were found
// in caches lately. A token costs about the same in a prompt as in a decode, so no weight is needed: where
// outputs are long, requests spread by number (least_requests), and where prompts are long and shared, a
// request goes where its prefix is, until that worker has more to do than the prefix saves. A token that is
// computed also takes the place of another in the cache, which would have been found with probability h:
// hence 1 + h.
//
// Where capacity is short, a slot that falls free is best used by a request whose prefix is on that worker.
// So a request whose prefix is on full workers lets younger ones of its class go first, up to twice the 99th
// percentile of waits under first come, first served (Snapshot::first_come). No room stays empty for that.
//
// Ties: fewest requests, then in turn. Threads: as Policy. Cost: where more than one request waits, some
// look-ups for each of kLook requests and worker with room; and one per worker for each that is placed.
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
  bool uses_first_come_waits() const override { return true; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  // // More of the request's prompt is on a worker without room for it than on any with room, by a block at
  // least, and it has not waited too long.
  bool LetsOthersGoFirst(const Snapshot& snapshot, const WaitingView& request) const;
  // Places it if it fits anywhere.
  void Place(const Snapshot& snapshot, int32_t index, Decision& decision);
  WorkerIndex Choose(const Snapshot& snapshot, const WaitingView& request);

  FreeCapacity free_;
  // By worker: prompt tokens that it has to compute, those of this plan included.
  std::vector<int64_t> pending_;
  WorkerIndex next_ = 0;
  // Scratch, by waiting index.
  std::vector<char> placed_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_LEAST_WORK_LEAST_WORK_H_
