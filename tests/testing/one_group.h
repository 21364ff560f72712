// One group under a Cluster, with one method for each event that concerns it.
//
// Purpose: makes tests of a single group short. The group has index 0 and the given kind; its policy may be
// an object created by the test. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "router/core/scheduler/cluster.h"

namespace bfio::testing {

class OneGroup {
 public:
  static constexpr core::GroupIndex kGroup = 0;

  OneGroup(const core::SchedulerOptions& options, std::unique_ptr<core::Policy> policy,
           std::unique_ptr<core::Lookahead> lookahead = nullptr,
           core::GroupKind kind = core::GroupKind::kBarrier, core::EventObserver* observer = nullptr)
      : policy_(std::move(policy)),
        cluster_(
            options, {}, [this](const core::PolicySetting& setting) { return MakePolicy(setting); },
            std::move(lookahead), observer) {
    EXPECT_TRUE(cluster_.Apply(core::AddGroup{kGroup, kind}).status.ok());
  }
  absl::Status Enqueue(const core::RequestSpec& request) {
    return cluster_.Apply(core::Enqueue{request}).status;
  }
  void Requeue(const core::RequestSpec& request) {
    EXPECT_TRUE(cluster_.Apply(core::Requeue{request}).status.ok());
  }
  core::CancelOutcome Cancel(core::RequestId id) { return cluster_.Apply(core::Cancel{id}).cancel; }
  std::vector<core::RequestId> OpenEpoch(std::vector<core::EpochMember> members) {
    return cluster_.Apply(core::OpenEpoch{kGroup, std::move(members)}).displaced;
  }
  void CloseEpoch() { cluster_.Apply(core::CloseEpoch{kGroup}); }
  void SetAcceptsNew(core::WorkerIndex worker, bool accepts_new) {
    cluster_.Apply(core::SetAcceptsNew{kGroup, worker, accepts_new});
  }
  void SetCost(core::WorkerIndex worker, const BatchCost& cost) {
    cluster_.Apply(core::SetCost{kGroup, worker, cost});
  }
  absl::Status OnReport(core::WorkerIndex worker, const core::StepReport& report) {
    return cluster_.Apply(core::Report{kGroup, worker, report}).status;
  }
  std::optional<core::Plan> MakePlan(bool force = false, std::optional<core::PlacementRule> rule = {}) {
    return cluster_.Apply(core::MakePlan{kGroup, force, rule}).plan;
  }
  void SetPolicy(std::unique_ptr<core::Policy> policy) {
    policy_ = std::move(policy);
    EXPECT_TRUE(cluster_.Apply(core::SetPolicy{}).status.ok());
  }

  const core::Cluster& cluster() const { return cluster_; }
  const core::Scheduler& group() const { return *cluster_.group(kGroup); }
  core::Scheduler::WorkerAccount Account(core::WorkerIndex worker) const { return group().Account(worker); }
  int64_t waiting() const { return cluster_.waiting(); }
  int64_t placed() const { return cluster_.placed(); }
  int64_t NextStep() const { return cluster_.NextStep(); }
  bool Knows(core::RequestId id) const { return cluster_.Knows(id); }
  std::optional<core::WorkerIndex> WorkerOf(core::RequestId id) const { return group().WorkerOf(id); }
  int64_t reported_step() const { return group().reported_step(); }
  bool Parked() const { return group().Parked(); }
  core::SchedulerTotals totals() const { return cluster_.totals(); }

 private:
  absl::StatusOr<std::unique_ptr<core::Policy>> MakePolicy(const core::PolicySetting& setting) {
    if (policy_ != nullptr) return std::move(policy_);
    return core::MakePolicy(setting.name, setting.options);
  }

  // The policy that the next SetPolicy or AddGroup installs.
  std::unique_ptr<core::Policy> policy_;
  core::Cluster cluster_;
};

}  // namespace bfio::testing
