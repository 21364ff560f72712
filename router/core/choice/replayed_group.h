// A simulated small group whose requests are placed by one policy: the step times that it would give.
//
// Purpose: a model with slots and loads only; each request adds a token per step. KV limits, chunked prefill
// and pipelined plans are left out, because rules are compared while slots are free. The requests have ended
// before, so their lengths are known here, but the policy gets the same input as in the router: prompts and
// predictions. Borrows the lookahead, which does not learn from it. Threads: one. Deterministic.
#ifndef BFIO_ROUTER_CORE_CHOICE_REPLAYED_GROUP_H_
#define BFIO_ROUTER_CORE_CHOICE_REPLAYED_GROUP_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "router/core/choice/ended_requests.h"
#include "router/core/lookahead/far_outlook.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class ReplayedGroup {
 public:
  // `workers`: the group's workers without requests; free_slots is the number of their slots. `rule` is
  // Snapshot::rule of the policy's decisions.
  ReplayedGroup(std::unique_ptr<Policy> policy, PlacementRule rule, absl::Span<const WorkerView> workers);

  // Puts a request of this age on the least loaded worker, whatever the policy: this builds the state from
  // which a replay starts. The request is dropped when no slot is free.
  void Begin(const EndedRequest& request, int64_t age);

  // One step: `arrivals` are placed while slots are free, then every request generates a token. Returns the
  // time of the slowest worker (WorkerView::Time).
  double Step(Lookahead& lookahead, absl::Span<const EndedRequest> arrivals);

  // Sets the workers' step times from now on. REQUIRES: as many workers as before.
  void SetWorkers(absl::Span<const WorkerView> workers);

 private:
  struct Worker {
    WorkerView view;
    std::vector<Resident> residents;
    // The last step of each resident, and the smallest of them.
    std::vector<int64_t> last_steps;
    int64_t next_end = 0;
    // Counts changes of `residents`.
    int64_t version = 0;
  };

  void Put(Worker& worker, const EndedRequest& request, int64_t first_step);
  void Place(Lookahead& lookahead);
  void EndStep(Worker& worker);

  std::unique_ptr<Policy> policy_;
  PlacementRule rule_;
  FarOutlookBuilder far_;
  std::vector<Worker> workers_;
  int64_t step_ = 1;
  RequestId last_id_ = 0;
  std::deque<EndedRequest> waiting_;
  // Scratch.
  std::vector<WorkerView> views_;
  std::vector<WaitingView> shown_;
  Decision decision_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_CHOICE_REPLAYED_GROUP_H_
