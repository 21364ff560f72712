// All groups of a router and the pool of requests that they share: events in, plans out. Holds all state of a
// router's groups and waiting pool, and makes every decision. The router's decision thread, the simulator and
// the replay drive the same class through the same events (scheduler_event.h): they differ only in where
// events come from and where plans go. Threads: none inside; owned and called by one thread. No I/O, no
// clock: steps are numbered by the events themselves. Deterministic: the same events in the same order give
// the same outcomes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/core/lookahead/lookahead.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/request_pool.h"
#include "router/core/scheduler/scheduler.h"
#include "router/core/scheduler/scheduler_event.h"
#include "router/core/scheduler/scheduler_options.h"

namespace bfio::core {

class Cluster;

// Called with every event and its outcome, in order.
class EventObserver {
 public:
  virtual ~EventObserver() = default;
  virtual void Before(const SchedulerEvent& event) {}
  virtual void After(const Cluster& cluster, const SchedulerEvent& event, const Outcome& outcome) {}
};

class Cluster {
 public:
  // Creates a separate policy instance for each group.
  using PolicyFactory = std::function<absl::StatusOr<std::unique_ptr<Policy>>(const PolicySetting&)>;

  // A cluster without groups. `factory`, if empty, is MakePolicy. Without a lookahead nothing is predicted.
  // `observer`, if set, outlives the cluster.
  Cluster(const SchedulerOptions& options, const PolicySetting& policy, PolicyFactory factory = {},
          std::unique_ptr<Lookahead> lookahead = nullptr, EventObserver* observer = nullptr);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  Outcome Apply(const SchedulerEvent& event);

  // --- views ---

  // Null when there is no such group.
  const Scheduler* group(GroupIndex index) const;
  // In ascending order.
  std::vector<GroupIndex> groups() const;
  // The order in which groups should decide: groups with an open epoch, by the free share of their slots,
  // largest first; ties by index.
  std::vector<GroupIndex> DecisionOrder() const;

  struct Location {
    GroupIndex group = 0;
    WorkerIndex worker = 0;

    friend bool operator==(const Location&, const Location&) = default;
  };
  // The location of a placed request.
  std::optional<Location> LocationOf(RequestId id) const;
  // The request waits or is placed.
  bool Knows(RequestId id) const { return pool_.Waits(id) || LocationOf(id).has_value(); }

  int64_t NextStep() const { return pool_.NextStep(); }
  int64_t waiting() const { return pool_.size(); }
  int64_t waiting_tokens() const { return pool_.tokens_to_compute(); }
  // False: each rank that computes prompts for others has stopped before and may have one request until it
  // works again, and there are as many.
  bool TakesPrefills() const;
  // Slots and KV tokens of groups that decode that are promised to prompts under way on other ranks, or
  // computed there; and how many prompts are under way there.
  Room Promised() const;
  int64_t PrefillsUnderWay() const;
  // A request that a rank decodes and another one could compute the prompt of: whether all requests together
  // are sooner at their ends if the rank that decodes computes it itself. Only where groups that decode have
  // room that is not promised.
  bool DecodesSooner(const RequestSpec& request) const;
  // Number of placed requests in all groups, in flight included.
  int64_t placed() const;
  const RequestPool& pool() const { return pool_; }
  const Lookahead& lookahead() const { return pool_.lookahead(); }
  const PolicySetting& policy_setting() const { return setting_; }
  const SchedulerOptions& options() const { return options_; }
  // Sums over all groups, removed ones included.
  SchedulerTotals totals() const;

 private:
  Outcome Dispatch(const AddGroup& event);
  Outcome Dispatch(const Enqueue& event);
  Outcome Dispatch(const Requeue& event);
  Outcome Dispatch(const Cancel& event);
  Outcome Dispatch(const SetPolicy& event);
  // Events of one group.
  Outcome Dispatch(const RemoveGroup& event, Scheduler& group);
  Outcome Dispatch(const OpenEpoch& event, Scheduler& group);
  Outcome Dispatch(const CloseEpoch& event, Scheduler& group);
  Outcome Dispatch(const SetAcceptsNew& event, Scheduler& group);
  Outcome Dispatch(const SetTime& event, Scheduler& group);
  Outcome Dispatch(const SetServiceTime& event, Scheduler& group);
  Outcome Dispatch(const SetCost& event, Scheduler& group);
  Outcome Dispatch(const Report& event, Scheduler& group);
  Outcome Dispatch(const MakePlan& event, Scheduler& group);

  Scheduler* Find(GroupIndex index) const;
  // Groups of ranks that compute prompts for others follow one policy, whatever the setting is.
  absl::StatusOr<std::unique_ptr<Policy>> MakePolicyFor(GroupKind kind, const PolicySetting& setting) const;
  // What groups that decode have room for and is not promised; adds what is placed there, and its tokens.
  Room FreeRoom(int64_t& placed, int64_t& held) const;
  // What groups that decode have room for: their free slots and KV memory, and the slots of as many requests
  // as may end in the time of two prompts, less what is promised to prompts under way or computed.
  Room RoomForPrefill() const;
  // Call after groups have opened, closed or advanced.
  void UpdateClock();
  void UpdateLead();
  // The costs of workers' steps may have changed: passes them to admission by batches.
  void UpdateCost();
  absl::Status CheckUnknown(RequestId id) const;

  const SchedulerOptions options_;
  PolicySetting setting_;
  const PolicyFactory factory_;
  EventObserver* const observer_;
  RequestPool pool_;
  std::map<GroupIndex, std::unique_ptr<Scheduler>> groups_;
  // The largest index that was ever used; below 0: none.
  GroupIndex last_group_ = -1;
  // For the mean number of requests that end while a prompt is computed for them: at each end, the number of
  // such prompts under way is added to the first; each prompt computed counts in the second.
  double ends_ = 0, prompts_ = 0;
  // Totals of removed groups.
  SchedulerTotals retired_;
};

}  // namespace bfio::core
