// One group under a Cluster, with one method for each event that concerns it.
//
// Purpose: makes tests of a single group short. The group has index 0 and the given kind; its policy may be
// an object created by the test. Threads: one.
#ifndef BFIO_TESTS_TESTING_ONE_GROUP_H_
#define BFIO_TESTS_TESTING_ONE_GROUP_H_

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
           core::GroupKind kind = core::GroupKind::kBarrier)
      : policy_(std::move(policy)),
        cluster_(
            options, {}, [this](const core::PolicySetting& setting) { return MakePolicy(setting); },
            std::move(lookahead)) {
    EXPECT_TRUE(cluster_.Apply(core::AddGroup{kGroup, kind}).status.ok());
  }
  // With policies by name; `observer`, if not null, records the events.
  OneGroup(const core::SchedulerOptions& options, const core::PolicySetting& policy,
           std::unique_ptr<core::Lookahead> lookahead, core::GroupKind kind, core::EventObserver* observer)
      : cluster_(options, policy, {}, std::move(lookahead), observer) {
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
  void SetTime(core::WorkerIndex worker, double time_per_token, double time_offset) {
    cluster_.Apply(core::SetTime{kGroup, worker, time_per_token, time_offset, 0});
  }
  void SetServiceTime(core::WorkerIndex worker, double service_time) {
    cluster_.Apply(core::SetServiceTime{kGroup, worker, service_time});
  }
  void SetCost(core::WorkerIndex worker, const BatchCost& cost) {
    cluster_.Apply(core::SetCost{kGroup, worker, cost});
  }
  absl::Status OnReport(core::WorkerIndex worker, const core::StepReport& report) {
    return cluster_.Apply(core::Report{kGroup, worker, report}).status;
  }
  std::optional<core::Plan> MakePlan(bool force = false) {
    return cluster_.Apply(core::MakePlan{kGroup, force}).plan;
  }
  void SetPolicy(const core::PolicySetting& setting) {
    EXPECT_TRUE(cluster_.Apply(core::SetPolicy{setting}).status.ok());
  }
  void SetPolicy(std::unique_ptr<core::Policy> policy) {
    policy_ = std::move(policy);
    SetPolicy(core::PolicySetting{});
  }

  const core::Cluster& cluster() const { return cluster_; }
  const core::Scheduler& group() const { return *cluster_.group(kGroup); }
  const core::Policy& policy() const { return group().policy(); }
  core::Scheduler::WorkerAccount Account(core::WorkerIndex worker) const { return group().Account(worker); }
  int32_t num_workers() const { return group().num_workers(); }
  int64_t waiting() const { return cluster_.waiting(); }
  int64_t placed() const { return cluster_.placed(); }
  int64_t NextStep() const { return cluster_.NextStep(); }
  bool Knows(core::RequestId id) const { return cluster_.Knows(id); }
  std::optional<core::WorkerIndex> WorkerOf(core::RequestId id) const { return group().WorkerOf(id); }
  int64_t reported_step() const { return group().reported_step(); }
  bool ReportsMissing() const { return group().ReportsMissing(); }
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

#endif  // BFIO_TESTS_TESTING_ONE_GROUP_H_
