// The central waiting pool: the router's own Cluster with one group, driven as the router drives it.
// Simulates lockstep and pipelined plans and late reports with the code that runs in production. Threads:
// none.
#ifndef BFIO_TOOLS_SIM_RUN_POOL_DISPATCHER_H_
#define BFIO_TOOLS_SIM_RUN_POOL_DISPATCHER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "router/core/scheduler/cluster.h"
#include "tools/sim/run/dispatcher.h"

namespace bfio::sim {

class PoolDispatcher final : public Dispatcher {
 public:
  static absl::StatusOr<std::unique_ptr<Dispatcher>> Create(const SimOptions& options,
                                                            std::vector<core::WorkerSpec> workers);

  absl::Status Enqueue(const core::RequestSpec& request) override {
    return cluster_.Apply(core::Enqueue{request}).status;
  }
  absl::Status Start(int64_t step, std::vector<Started>& started) override;
  absl::Status OnReport(GroupReport report) override;
  int64_t waiting() const override { return cluster_.waiting(); }
  const core::RuleChooser* chooser() const override {
    return group().chooser().chooses() ? &group().chooser() : nullptr;
  }

 private:
  PoolDispatcher(const SimOptions& options, std::unique_ptr<core::Policy> policy,
                 std::unique_ptr<core::Lookahead> lookahead, std::vector<core::WorkerSpec> workers);
  const core::Scheduler& group() const { return *cluster_.group(kGroup); }
  absl::Status Deliver(const GroupReport& report);

  static constexpr core::GroupIndex kGroup = 0;

  core::Cluster cluster_;
  ReportDelay delay_;
  // Plans decided and not yet applied.
  std::deque<core::Plan> plans_;
  // Number of the last plan applied: now, and when each held report was created.
  int64_t applied_plan_ = 0;
  std::deque<int64_t> applied_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_POOL_DISPATCHER_H_
