#include "tools/sim/run/pool_dispatcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/core/admission/admission_text.h"
#include "router/core/lookahead/lookahead.h"

namespace bfio::sim {
namespace {

// Above saturation the pool grows, as it should in such a run; this limit protects the machine's memory.
constexpr int64_t kMostWaiting = 2'000'000;

core::SchedulerOptions SchedulerOptionsFor(const SimOptions& options) {
  core::SchedulerOptions result;
  result.plan_mode =
      options.plan_mode == "pipelined" ? core::PlanMode::kPipelined : core::PlanMode::kLockstep;
  result.max_waiting = kMostWaiting;
  result.window = options.window > 0 ? options.window : std::max(result.window, options.reveal);
  result.report_delay_steps = options.report_delay;
  const core::AdmissionSetting admission = *core::ParseAdmission(options.admission);
  result.admission = admission.kv;
  result.wait = admission.wait;
  // The cost of a step is known here; a cost in the settings takes precedence.
  if (!absl::StrContains(options.admission, "tokens=") && options.cost.tl_s_per_token > 0)
    result.wait.fixed_tokens = std::max(1.0, options.cost.c_s / options.cost.tl_s_per_token);
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dispatcher>> PoolDispatcher::Create(const SimOptions& options,
                                                                   std::vector<core::WorkerSpec> workers) {
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<core::Policy> policy, MakePolicy(options));
  BFIO_ASSIGN_OR_RETURN(std::unique_ptr<core::Lookahead> lookahead, core::MakeLookahead(options.lookahead));
  return std::unique_ptr<Dispatcher>(
      new PoolDispatcher(options, std::move(policy), std::move(lookahead), std::move(workers)));
}

PoolDispatcher::PoolDispatcher(const SimOptions& options, std::unique_ptr<core::Policy> policy,
                               std::unique_ptr<core::Lookahead> lookahead,
                               std::vector<core::WorkerSpec> workers)
    : cluster_(
          SchedulerOptionsFor(options), {},
          // There is one group, so the policy that already exists is moved out.
          [made = std::make_shared<std::unique_ptr<core::Policy>>(std::move(policy))](
              const core::PolicySetting&) { return std::move(*made); },
          std::move(lookahead)),
      delay_(options.report_delay) {
  core::OpenEpoch epoch{kGroup, {}};
  for (core::WorkerSpec& worker : workers) epoch.members.push_back({worker, {}, {}});
  cluster_.Apply(core::AddGroup{kGroup, core::GroupKind::kBarrier});
  cluster_.Apply(epoch);
}

absl::Status PoolDispatcher::Start(int64_t step, std::vector<Started>& started) {
  core::Outcome outcome = cluster_.Apply(core::MakePlan{kGroup});
  if (outcome.plan) plans_.push_back(*std::move(outcome.plan));
  if (group().totals().policy_violations > 0) {
    return absl::InternalError(absl::StrCat("step ", step, ": the policy returned an invalid plan"));
  }
  if (plans_.empty() || plans_.front().apply_step > step) return absl::OkStatus();
  if (plans_.front().apply_step < step) {
    return absl::InternalError(
        absl::StrCat("the plan for step ", plans_.front().apply_step, " was ready only in step ", step));
  }
  for (const core::Placement& placement : plans_.front().placements) {
    started.push_back({placement.id, placement.worker});
  }
  applied_plan_ = step;
  plans_.pop_front();
  return absl::OkStatus();
}

absl::Status PoolDispatcher::OnReport(GroupReport report) {
  delay_.Push(std::move(report));
  applied_.push_back(applied_plan_);
  while (const GroupReport* due = delay_.Front()) {
    BFIO_RETURN_IF_ERROR(Deliver(*due));
    delay_.Pop();
    applied_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status PoolDispatcher::Deliver(const GroupReport& group) {
  for (size_t g = 0; g < group.loads.size(); ++g) {
    core::StepReport report;
    report.step = group.step;
    report.applied_plan = applied_.front();
    report.load_tokens = group.loads[g];
    report.finished = group.finished[g];
    if (!group.hints.empty()) report.hints = group.hints[g];
    std::vector<core::RequestId> preempted;
    if (!group.preempted.empty()) {
      for (const core::RequestSpec& request : group.preempted[g]) preempted.push_back(request.id);
    }
    report.preempted = preempted;
    report.group_idle = group.idle;
    const auto worker = static_cast<core::WorkerIndex>(g);
    BFIO_RETURN_IF_ERROR(cluster_.Apply(core::Report{kGroup, worker, report}).status);
  }
  for (const std::vector<core::RequestSpec>& requests : group.preempted) {
    for (const core::RequestSpec& request : requests) cluster_.Apply(core::Requeue{request});
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
