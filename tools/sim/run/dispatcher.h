// How waiting requests reach workers: the interface between a simulated group and the code that decides. Two
// implementations, a central pool (pool_dispatcher.h) and instant dispatch to queues at the workers
// (instant_dispatcher.h). Ownership: the simulation owns one. Threads: none. Steps are numbered from 1; the
// calls of a step are Enqueue (any number), Start, OnReport, in this order.
#ifndef BFIO_TOOLS_SIM_RUN_DISPATCHER_H_
#define BFIO_TOOLS_SIM_RUN_DISPATCHER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/core/choice/rule_chooser.h"
#include "router/core/model/request.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/events.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

// Request `id` runs on `worker` from the current step on.
struct Started {
  core::RequestId id = 0;
  core::WorkerIndex worker = 0;
};

// The reports of all workers after a step. Vectors are indexed by rank.
struct GroupReport {
  int64_t step = 0;
  std::vector<int64_t> loads;
  std::vector<std::vector<core::RequestId>> finished;
  std::vector<std::vector<core::CompletionHint>> hints;
  // Requests preempted for lack of KV memory, as they must be placed again.
  std::vector<std::vector<core::RequestSpec>> preempted;
  bool idle = false;
};

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;

  virtual absl::Status Enqueue(const core::RequestSpec& request) = 0;
  // Decides, and appends the requests that start in `step`.
  virtual absl::Status Start(int64_t step, std::vector<Started>& started) = 0;
  // The workers' reports of the step that has just ended. With a report delay they are used in a later step.
  virtual absl::Status OnReport(GroupReport report) = 0;
  // Requests that have no worker yet, or wait in a worker's queue.
  virtual int64_t waiting() const = 0;
  // Null where there is nothing to choose.
  virtual const core::RuleChooser* chooser() const { return nullptr; }
};

// The policy of the options. INVALID_ARGUMENT where it is unknown or does not accept a setting.
absl::StatusOr<std::unique_ptr<core::Policy>> MakePolicy(const SimOptions& options);

// INVALID_ARGUMENT for settings that Validate cannot check, such as an unknown policy.
absl::StatusOr<std::unique_ptr<Dispatcher>> MakeDispatcher(const SimOptions& options,
                                                           std::vector<core::WorkerSpec> workers);

// Delays reports by a number of steps.
class ReportDelay {
 public:
  explicit ReportDelay(int32_t steps) : steps_(steps) {}
  void Push(GroupReport report) { held_.push_back(std::move(report)); }
  // The oldest report if it is at least `steps` old, otherwise null. Valid until the next call of Pop.
  const GroupReport* Front() const {
    return static_cast<int64_t>(held_.size()) > steps_ ? &held_.front() : nullptr;
  }
  void Pop() { held_.pop_front(); }

 private:
  int64_t steps_;
  std::deque<GroupReport> held_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_DISPATCHER_H_
