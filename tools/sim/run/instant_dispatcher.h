// Instant dispatch: every request is sent to a worker in the step in which it arrives, and waits there.
// Models a router without a waiting pool (the interface that the BF-IO paper leaves open), with the same
// policies. The policy is called once per step with the requests that arrived. In its snapshot every worker
// has capacity for all of them; a worker's load includes the prompt tokens of its queue, and its active
// requests include the queue. Each worker starts the head of its queue when a slot and KV memory are free; no
// request overtakes another. Loads and completions are as old as the reports; what the dispatcher itself has
// sent is known at once. Threads: none.
#ifndef BFIO_TOOLS_SIM_RUN_INSTANT_DISPATCHER_H_
#define BFIO_TOOLS_SIM_RUN_INSTANT_DISPATCHER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "router/core/model/snapshot.h"
#include "router/core/policy/policy.h"
#include "router/core/scheduler/events.h"
#include "tools/sim/rank/engine_run.h"

namespace bfio::sim {

class InstantDispatcher final : public EngineDispatcher {
 public:
  // The others outlive the dispatcher.
  InstantDispatcher(std::unique_ptr<core::Policy> policy, int32_t report_delay,
                    std::vector<core::WorkerSpec> workers, ServeGroup* group,
                    const std::vector<ServeRequest>* requests);

  void Arrived(ServeRequestIndex index) override;
  absl::Status Decide(double now_s) override;
  bool Order(int32_t stepper, std::vector<RankOrder>& orders) override;
  void Stepped(int32_t stepper, const ServeStep& step, double now_s) override;
  int64_t waiting() const override { return static_cast<int64_t>(fresh_.size()) + queued_; }

 private:
  // A request at a worker, until a report with its end is processed.
  struct Sent {
    core::RequestId id = 0;
    ServeRequestIndex index = 0;
    int64_t prefill_tokens = 0;
    int64_t kv_reserve_tokens = 0;
    // 0 while it waits in the queue.
    int64_t first_step = 0;
  };
  struct Worker {
    core::WorkerSpec spec;
    // The actual state of the worker.
    std::deque<Sent> queue;
    int32_t active = 0;
    int64_t reserved_kv = 0;
    // The dispatcher's view: requests running in the last reported step, their load in the step after it, and
    // the prompt tokens and number of requests sent that the report does not cover.
    int32_t known_active = 0;
    int64_t known_load = 0;
    int64_t unseen_tokens = 0;
    int32_t unseen = 0;
  };

  // The reports of all workers after a step, by rank.
  struct GroupReport {
    int64_t step = 0;
    std::vector<int64_t> loads;
    std::vector<std::vector<core::RequestId>> finished;
  };

  void StartQueued(core::WorkerIndex g);
  void Learn(const GroupReport& report);

  std::unique_ptr<core::Policy> policy_;
  std::vector<Worker> workers_;
  ServeGroup* const group_;
  const std::vector<ServeRequest>* const requests_;
  const int32_t report_delay_;
  // Reports that have not been processed.
  std::deque<GroupReport> reports_;
  int64_t step_ = 1, reported_step_ = 0;
  // Requests not yet sent to a worker.
  std::vector<core::WaitingView> fresh_;
  std::vector<ServeRequestIndex> fresh_indices_;
  // Requests that run, or have finished without a processed report of it.
  absl::flat_hash_map<core::RequestId, Sent> running_;
  // Requests in the order in which they started, until a report covers their first step.
  std::deque<std::pair<core::WorkerIndex, Sent>> unseen_starts_;
  int64_t queued_ = 0;

  // Scratch.
  std::vector<core::WorkerView> views_;
  core::Decision decision_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_INSTANT_DISPATCHER_H_
