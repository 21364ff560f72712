#include "router/app/options.h"

namespace bfio::router {

core::SchedulerOptions RouterOptions::scheduler() const {
  core::SchedulerOptions out;
  out.plan_mode = plan_mode;
  out.max_waiting = max_waiting;
  out.window = max_waiting;
  out.admission = admission;
  out.wait = wait;
  return out;
}

OverloadOptions RouterOptions::overload() const {
  return {.max_waiting = max_waiting, .max_waiting_bytes = max_waiting_bytes};
}

RequestOptions RouterOptions::requests() const {
  RequestOptions out;
  out.resume.budget_bytes = replay_budget_bytes;
  out.resume.timeout = client_timeout;
  out.resume.linger = client_timeout;
  out.resume.max_early = max_waiting;
  out.resume.max_early_bytes = max_waiting_bytes;
  out.max_abs_priority = limits.max_abs_priority;
  out.kv_on_demand = admission.kind != core::KvAdmissionOptions::Kind::kNone;
  out.restart_settle = restart_settle;
  // Connected workers may have waited restart_settle for others; then they form an epoch or try to.
  out.announce_settle = restart_settle + 2 * step_timeout;
  out.max_queue_time = max_queue_time;
  out.hands_over_all = hands_over_all;
  out.stream = stream();
  return out;
}

GroupSetOptions RouterOptions::group_set(uint64_t instance) const {
  GroupSetOptions out;
  out.groups = groups;
  out.models = models;
  out.group.kind = group_kind;
  out.group.workers = workers;
  out.group.plan_mode = plan_mode;
  out.group.step_timeout = step_timeout;
  out.group.form_timeout = step_timeout;
  out.group.restart_settle = restart_settle;
  out.group.retain = client_timeout;
  out.group.max_announced_bytes = replay_budget_bytes;
  out.group.instance = instance;
  return out;
}

}  // namespace bfio::router
