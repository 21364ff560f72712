// The state that all groups of a router share: the waiting requests, and the inputs of decisions about all of
// them. The waiting pool with its bound, the requests that wait for a batch (wait_admission.h), the service
// of each tenant, the lookahead, the reference wait (virtual_fcfs.h), and the clock of waiting ages. Groups
// take requests out; a Cluster puts them in. Owned by a Cluster; schedulers and their parts borrow it.
// Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "router/core/admission/wait_admission.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/model/free_capacity.h"
#include "router/core/model/request.h"
#include "router/core/model/snapshot.h"
#include "router/core/scheduler/scheduler_options.h"
#include "router/core/scheduler/tenant_service.h"
#include "router/core/scheduler/virtual_fcfs.h"
#include "router/core/scheduler/waiting_pool.h"

namespace bfio::core {

// The clock of waiting ages, common to all groups. Groups step at their own paces; ages, their priority
// weights and the reference wait belong to the shared pool and need one clock. It ticks once in the time that
// the mean rank of the open groups takes for a step: each completed step of a group adds its ranks (each
// report of a rank without a barrier adds one), and the clock ticks when the sum has reached the ranks of all
// open groups. With one group it counts that group's steps. A group that plans n steps ahead decides at the
// clock's time plus n. Deterministic; never goes back. Threads: one.
class PoolClock {
 public:
  // Ticks so far.
  int64_t now() const { return now_; }
  // The step from which the age of a request enqueued now counts; never decreases.
  int64_t NextStep() const { return next_; }
  // The time of a plan that reaches `ahead` steps beyond its group's reports. No waiting request counts from
  // a later step.
  int64_t At(int64_t ahead) const { return std::max(next_, now_ + ahead); }

  // Sets the number of ranks in open groups from now on.
  void SetOpenRanks(int64_t ranks) { open_ranks_ = ranks; }
  int64_t open_ranks() const { return open_ranks_; }

  // `ranks` ranks have made a step. `own_ranks`: number of ranks of their group, which may have been closed
  // meanwhile. True when the clock ticks.
  bool AddSteps(int64_t ranks, int64_t own_ranks);

  // A group restarts; `latest` is the last time for which it has decided. The count towards the next tick
  // starts again, because it came from other ranks.
  void BeginEpoch(int64_t latest) {
    now_ = std::max(now_, latest);
    next_ = std::max(next_, now_ + 1);
    counted_ = 0;
  }

  // `lead` is the smallest number of steps by which an open group's plans are ahead of its reports.
  void Lead(int64_t lead) { next_ = std::max(next_, now_ + lead + 1); }

 private:
  int64_t now_ = 0;
  int64_t next_ = 1;
  int64_t counted_ = 0;
  int64_t open_ranks_ = 0;
};

inline bool PoolClock::AddSteps(int64_t ranks, int64_t own_ranks) {
  counted_ += ranks;
  const int64_t per_tick = std::max({int64_t{1}, open_ranks_, own_ranks});
  if (counted_ < per_tick) return false;
  // Modulo instead of subtraction, because there may be fewer ranks now than when counting began.
  counted_ %= per_tick;
  ++now_;
  return true;
}

class RequestPool {
 public:
  // Without a lookahead nothing is predicted.
  RequestPool(const SchedulerOptions& options, std::unique_ptr<Lookahead> lookahead);
  RequestPool(const RequestPool&) = delete;
  RequestPool& operator=(const RequestPool&) = delete;

  // --- requests come and go ---

  // How many of max_waiting requests may wait for single ranks: the requests of a full rank must not fill the
  // shared pool.
  static int64_t MostForRanks(int64_t max_waiting) { return (max_waiting + 1) / 2; }
  // RESOURCE_EXHAUSTED when the pool is full. REQUIRES: !Waits(request.id).
  absl::Status Enqueue(const RequestSpec& request);
  // Adds the request ahead of its class, whatever the bound. REQUIRES: !Waits(request.id).
  void Requeue(const RequestSpec& request);
  // For a request that a worker refused: adds it at the position of its age and deadline. REQUIRES:
  // !Waits(request.id).
  void Return(const RequestSpec& request, int64_t enqueued_step);
  // False when the request does not wait.
  bool Remove(RequestId id);
  bool Waits(RequestId id) const {
    return waiting_.Contains(id) || held_back_.Contains(id) || for_ranks_.Contains(id);
  }

  // Admits to the pool the requests that form a batch in a plan at this time. Returns how many of them have
  // waited for others of their class.
  int64_t ReleaseBatches(int64_t step, bool idle);

  // --- what policies see ---

  // ShowFor, before a group's decision: hides requests that the group cannot run. The second: shows all
  // requests again, in their order. While requests are hidden, only functions that a decision uses may be
  // called.
  void ShowFor(int32_t group, const GroupAbility& ability) {
    deciding_ = {group, ability};
    waiting_.Hide(ability);
  }
  void ShowAll() { waiting_.ShowAll(); }

  // The first `count` requests that may be placed, or all if there are fewer.
  absl::Span<WaitingView> Window(int64_t count);
  // The number of them that a group with `free_slots` gets, where other groups have `slots_elsewhere`. All,
  // where slots are short: the deciding group fills its own slots. Otherwise its share of the requests on
  // which no group has decided yet, so that a burst is divided by free slots, and all requests that have been
  // passed over.
  int64_t TakeShare(int64_t free_slots, int64_t slots_elsewhere);
  const WaitingPool& views() const { return waiting_; }
  // Whether there may be a request to decide on.
  bool AnyPlaceable() const { return placeable() > 0 || !for_ranks_.empty(); }
  // Appends the requests that wait for a rank of the deciding group that has a free slot and may run them.
  void AppendHeld(absl::Span<const WorkerView> workers, std::vector<WaitingView>& held) const;
  // REQUIRES: the request waits, and not for a batch.
  const RequestSpec& Spec(RequestId id) const {
    return (waiting_.Contains(id) ? waiting_ : for_ranks_).Spec(id);
  }
  // Executes a decision at `step`: removes the requests at these indices. Call it for an empty decision too.
  void Take(absl::Span<const Assignment> assignments, int64_t step);
  // How long recent requests of each class would have waited if the oldest always went first, in fair order
  // of the tenants, and how long the next one would have waited at `step`. Valid until the next decision.
  absl::Span<const ClassWait> FirstComeWaits(int64_t step);
  // Writes WaitingView::tenant_excess_tokens: the tenant's lead over the least served tenant with a request
  // of the same priority in the window that fits a worker now. A tenant whose requests cannot run now must
  // not delay the others. Also writes tenant_reference_wait, at `step`.
  void FillTenants(absl::Span<WaitingView> window, const FreeCapacity& free, int64_t step);
  // The views refer to rows of an outlook. ClearCurves resets them, unless they are reset already.
  void CurvesAreSet() { curves_set_ = true; }
  void ClearCurves();

  // --- time ---

  // `ranks` ranks of a group of `own_ranks` have made a step; with a barrier, the largest load was
  // `largest_load`.
  void CountSteps(int64_t ranks, int64_t own_ranks, std::optional<int64_t> largest_load);

  // --- views ---

  // Number of waiting requests, including those that wait for a batch.
  int64_t size() const { return waiting_.size() + held_back_.size() + for_ranks_.size(); }
  // Prompt tokens of all those requests (RequestSpec::tokens_to_compute).
  int64_t tokens_to_compute() const;
  // Requests that a policy might place: those that are not hidden, and wait for no particular rank.
  int64_t placeable() const { return waiting_.size(); }
  // Requests that wait for a group that decodes (RequestSpec::kDecodes).
  WaitingPool::Needing for_decode() const { return waiting_.needing(RequestSpec::kDecodes); }
  WaitingPool::Needing for_prefill() const { return waiting_.needing(RequestSpec::kHandsOver); }
  // The step from which the age of a request enqueued now counts; never decreases.
  int64_t NextStep() const { return clock_.NextStep(); }

  PoolClock& pool_clock() { return clock_; }
  const PoolClock& pool_clock() const { return clock_; }
  TenantService& service() { return service_; }
  const TenantService& service() const { return service_; }
  Lookahead& lookahead() { return *lookahead_; }
  const Lookahead& lookahead() const { return *lookahead_; }
  WaitAdmission& wait_admission() { return held_back_; }
  const WaitAdmission& wait_admission() const { return held_back_; }

 private:
  // Records the arrival of a request that has waited since `since`. Returns where it waits now.
  WaitingPool& Arrive(const RequestSpec& request, int64_t since);
  // The least counter of the tenants with a request in `views` that fits a worker; empty when there is none.
  std::optional<double> LeastServed(absl::Span<const WaitingView> views, const FreeCapacity& free) const;

  const int64_t max_waiting_;
  const std::unique_ptr<Lookahead> lookahead_;
  WaitingPool waiting_;
  WaitAdmission held_back_;
  // The requests that each wait for one rank, because their clients have named it (RequestSpec::held_to).
  // They are not part of a policy's input, and a full rank delays only its own requests.
  WaitingPool for_ranks_;
  // The deciding group, and what it can run.
  struct Deciding {
    int32_t group = 0;
    GroupAbility ability;
  };
  Deciding deciding_;
  TenantService service_;
  // By priority, highest first. Classes are strict, so a first-come rule admits as many of each class as any
  // other rule.
  std::map<int32_t, VirtualFcfs, std::greater<>> first_come_;
  PoolClock clock_;
  bool curves_set_ = false;
  // Scratch.
  std::vector<WaitAdmission::Waiting> released_;
  std::vector<ClassWait> class_waits_;
};

}  // namespace bfio::core
