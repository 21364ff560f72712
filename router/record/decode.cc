#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/record/codec.h"

namespace bfio::record {
namespace {

// Limits that exceed all values of a router and are far below the values where sums overflow.
constexpr int64_t kMaxRequestTokens = int64_t{1} << 32;
constexpr int64_t kMaxLoadTokens = int64_t{1} << 48;
constexpr int64_t kMaxKvTokens = int64_t{1} << 62;
constexpr int64_t kMaxStep = int64_t{1} << 48;
constexpr int64_t kMaxCount = int64_t{1} << 48;
constexpr int32_t kMaxSlots = 1 << 20;
constexpr int32_t kMaxWorkers = 1 << 16;
constexpr int32_t kMaxGroup = 1 << 30;
constexpr int32_t kMaxKind = static_cast<int32_t>(core::GroupKind::kCoupled);
constexpr double kMaxTime = 1e9;

// Range checks that keep the first error.
class Check {
 public:
  Check& In(const char* field, int64_t value, int64_t low, int64_t high) {
    if (status_.ok() && (value < low || value > high)) {
      status_ = absl::InvalidArgumentError(absl::StrCat(field, " ", value, " is outside ", low, "..", high));
    }
    return *this;
  }
  // Also refuses NaN.
  Check& Real(const char* field, double value, double low, double high) {
    if (status_.ok() && !(value >= low && value <= high)) {
      status_ = absl::InvalidArgumentError(absl::StrCat(field, " ", value, " is outside ", low, "..", high));
    }
    return *this;
  }
  Check& Same(const char* fields, int a, int b) {
    if (status_.ok() && a != b) {
      status_ = absl::InvalidArgumentError(absl::StrCat(fields, ": ", a, " and ", b, " entries"));
    }
    return *this;
  }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

Check CheckTimes(const core::WorkerSpec& spec, Check check) {
  return check.Real("time_per_token", spec.time_per_token, 1e-9, kMaxTime)
      .Real("time_offset", spec.time_offset, -kMaxTime, kMaxTime)
      .Real("prefill_time", spec.prefill_time, 0, kMaxTime)
      .Real("service_time", spec.service_time, 1e-9, kMaxTime);
}

template <class Logged>
Check& PrefillIn(const Logged& from, core::RequestId base, Check& check,
                 std::optional<core::PrefillReport>& to) {
  if (!from.has_prefill()) return check;
  const v1::LoggedPrefill& prefill = from.prefill();
  to.emplace().token_budget = prefill.token_budget();
  to->metered = prefill.metered();
  check.In("token_budget", prefill.token_budget(), 0, kMaxLoadTokens)
      .Same("pending prompts", prefill.ids_size(), prefill.tokens_size());
  if (!check.status().ok()) return check;
  const std::vector<core::RequestId> ids = IdsIn(prefill.ids(), base);
  for (int i = 0; i < prefill.tokens_size(); ++i) {
    to->prompts.push_back({ids[i], prefill.tokens(i)});
    check.In("pending prompt", prefill.tokens(i), 1, kMaxRequestTokens);
  }
  return check;
}

template <class Logged>
void CostIn(const Logged& from, Check& check, std::optional<BatchCost>& to) {
  if (!from.has_cost()) return;
  const v1::LoggedCost& cost = from.cost();
  to = BatchCost{.c_s = cost.c_s(),
                 .a_s_per_token = cost.a_s_per_token(),
                 .b0_tokens = cost.b0_tokens(),
                 .k1_s_per_pair = cost.k1_s_per_pair(),
                 .k2_s_per_token = cost.k2_s_per_token()};
  check.Real("c_s", to->c_s, 0, kMaxTime)
      .Real("a_s_per_token", to->a_s_per_token, 1e-30, kMaxTime)
      .In("b0_tokens", to->b0_tokens, 0, kMaxLoadTokens)
      .Real("k1_s_per_pair", to->k1_s_per_pair, 0, kMaxTime)
      .Real("k2_s_per_token", to->k2_s_per_token, 0, kMaxTime);
}

absl::StatusOr<core::WorkerSpec> SpecIn(const v1::LoggedWorker& worker) {
  core::WorkerSpec spec;
  spec.slots = worker.slots();
  spec.kv_tokens = worker.kv_tokens();
  spec.accepts_new = !worker.refuses_new();
  if (worker.has_time_per_token()) spec.time_per_token = worker.time_per_token();
  if (worker.has_time_offset()) spec.time_offset = worker.time_offset();
  if (worker.has_service_time()) spec.service_time = worker.service_time();
  spec.prefill_time = worker.prefill_time();
  spec.prefix_cache = worker.prefix_cache();
  spec.member = worker.member();
  Check check;
  check.In("slots", spec.slots, 1, kMaxSlots).In("kv_tokens", spec.kv_tokens, 1, kMaxKvTokens);
  CostIn(worker, check, spec.cost);
  BFIO_RETURN_IF_ERROR(CheckTimes(spec, check).status());
  return spec;
}

absl::Status WorkerIn(const v1::LoggedState::Worker& from, core::RequestId base,
                      core::GroupState::Worker& to) {
  BFIO_ASSIGN_OR_RETURN(to.spec, SpecIn(from.worker()));
  to.last_step = from.last_step();
  to.planned_step = from.planned_step();
  to.applied = from.applied();
  to.idle = from.idle();
  to.drift = from.drift();
  to.extra_slots = from.extra_slots();
  to.shared_kv_tokens = from.shared_kv_tokens();
  Check check;
  check.In("last_step", to.last_step, 0, kMaxStep)
      .In("planned_step", to.planned_step, 0, kMaxStep)
      .In("applied", to.applied, 0, kMaxStep)
      .In("drift", to.drift, -kMaxLoadTokens, kMaxLoadTokens)
      .In("extra_slots", to.extra_slots, -kMaxSlots, kMaxSlots)
      .In("shared_kv_tokens", to.shared_kv_tokens, 0, kMaxLoadTokens);
  for (const v1::LoggedState::Resident& resident : from.residents()) {
    BFIO_ASSIGN_OR_RETURN(core::RequestSpec request, FromLog(resident.request(), base));
    to.residents.push_back({std::move(request), resident.inflight(), resident.first_step(),
                            resident.enqueued_step(), resident.dropped(), resident.settled_age(),
                            resident.drift(), resident.planned_for()});
    check.In("first_step", resident.first_step(), -kMaxStep, kMaxStep)
        .In("enqueued_step", resident.enqueued_step(), -kMaxStep, kMaxStep)
        .In("settled_age", resident.settled_age(), 0, kMaxStep)
        .In("drift", resident.drift(), -kMaxLoadTokens, kMaxLoadTokens)
        .In("planned_for", resident.planned_for(), 0, kMaxStep);
  }
  for (const v1::LoggedState::Inflight& entry : from.inflight()) {
    to.inflight.push_back({entry.apply_step(), IdIn(entry.id(), base), entry.drop()});
    check.In("apply_step", entry.apply_step(), 0, kMaxStep);
  }
  to.drops = IdsIn(from.drops(), base);
  return PrefillIn(from, base, check, to.prefill).status();
}

absl::Status TotalsIn(const v1::LoggedState::Totals& from, core::SchedulerTotals& to) {
  to = {from.plans(),       from.policy_calls(),      from.late_plans(), from.drift_tokens(),
        from.unknown_ids(), from.policy_violations(), from.preempted(),  from.held_back()};
  Check check;
  for (const int64_t count : {to.plans, to.policy_calls, to.late_plans, to.drift_tokens, to.unknown_ids,
                              to.policy_violations, to.preempted, to.held_back})
    check.In("count", count, 0, kMaxCount);
  return check.status();
}

void LevelsIn(const v1::LoggedState::Group& from, Check& check, core::GroupState& to) {
  if (!check.status().ok()) return;
  for (int i = 0; i < from.levels_size(); ++i) {
    core::PlannedLevel& level = to.levels.emplace_back(core::PlannedLevel{from.level_steps(i), std::nullopt});
    if (from.levels(i) > 0) level.level_s = from.levels(i);
    check.In("level_steps", level.step, 0, kMaxStep).Real("level", from.levels(i), 0, kMaxTime);
  }
  core::PromptTraffic& traffic = to.traffic;
  const std::array<core::FadingMean*, 6> means = {&traffic.placed_per_step, &traffic.prompt_tokens,
                                                  &traffic.prompt_squares,  &traffic.output_tokens,
                                                  &traffic.step_s,          &traffic.chunk_tokens};
  for (int i = 0; i < std::min<int>(from.traffic_size(), means.size()); ++i) {
    *means[i] = {from.traffic(i).weight(), from.traffic(i).value()};
    check.Real("weight", means[i]->weight, 0, 1).Real("mean", means[i]->value, 0, 1e300);
  }
}

// Converts a group without its workers.
absl::Status GroupIn(const v1::LoggedState::Group& from, core::RequestId base, core::GroupState& to) {
  to.group = from.group();
  to.kind = static_cast<core::GroupKind>(from.kind());
  to.open = from.open();
  to.model = from.model();
  to.reported_step = from.reported_step();
  to.planned_step = from.planned_step();
  to.decided_step = from.decided_step();
  to.reports = from.reports();
  to.placed_in_step = from.placed_in_step();
  if (from.has_holder()) to.holder = IdIn(from.holder(), base);
  Check check;
  check.In("group", to.group, 0, kMaxGroup)
      .In("kind", from.kind(), 0, kMaxKind)
      .In("reports", to.reports, 0, kMaxCount)
      .In("placed_in_step", to.placed_in_step, 0, kMaxCount)
      .Same("level_steps, levels", from.level_steps_size(), from.levels_size());
  LevelsIn(from, check, to);
  for (const int64_t step : {to.reported_step, to.planned_step, to.decided_step})
    check.In("step", step, 0, kMaxStep);
  absl::Status status = check.status();
  return status.ok() ? TotalsIn(from.totals(), to.totals) : status;
}

absl::Status PoolIn(const v1::LoggedState::Pool& from, core::ClusterState& to) {
  to.pool.service.last_served = from.last_served();
  to.pool.service.floor = from.tenant_floor();
  to.pool.clock = {from.now(), from.next(), from.counted()};
  to.last_group = from.has_last_group() ? from.last_group() : -1;
  absl::Status status = Check()
                            .In("now", from.now(), 0, kMaxStep)
                            .In("next", from.next(), 1, kMaxStep)
                            .In("counted", from.counted(), 0, kMaxCount)
                            .In("last_group", to.last_group, -1, kMaxGroup)
                            .Real("last_served", from.last_served(), -1e300, 1e300)
                            .Real("tenant_floor", from.tenant_floor(), -1e300, 1e300)
                            .status();
  return status.ok() ? TotalsIn(from.retired(), to.retired) : status;
}

// The workers of all groups are in one list, in the groups' order.
absl::Status GroupsIn(const v1::LoggedState& state, core::RequestId base, core::ClusterState& out) {
  int64_t first = 0;
  for (const v1::LoggedState::Group& group : state.groups()) {
    core::GroupState& to = out.groups.emplace_back();
    absl::Status status = GroupIn(group, base, to);
    if (!status.ok()) return status;
    status = Check().In("num_workers", group.num_workers(), 0, state.workers_size() - first).status();
    if (!status.ok()) return status;
    for (const int64_t end = first + group.num_workers(); first < end; ++first) {
      status = WorkerIn(state.workers(static_cast<int>(first)), base, to.workers.emplace_back());
      if (!status.ok()) return status;
    }
  }
  return Check().In("workers", state.workers_size(), first, first).status();
}

}  // namespace

std::vector<core::RequestId> IdsIn(const IdField& ids, core::RequestId base) {
  std::vector<core::RequestId> out;
  out.reserve(static_cast<size_t>(ids.size()));
  for (const int64_t delta : ids) out.push_back(base = IdIn(delta, base));
  return out;
}

absl::StatusOr<core::SchedulerOptions> FromLog(const v1::LoggedOptions& options) {
  core::SchedulerOptions out;
  out.plan_mode = options.lockstep() ? core::PlanMode::kLockstep : core::PlanMode::kPipelined;
  out.max_waiting = options.max_waiting();
  out.window = options.window();
  out.report_delay_steps = options.report_delay_steps();
  out.admission.kind = static_cast<core::KvAdmissionOptions::Kind>(options.admission());
  out.admission.confidence = options.admission_confidence();
  out.admission.alpha = options.admission_alpha();
  // Logs from before mc_sf do not have it.
  if (options.admission_most_steps() != 0) out.admission.most_steps = options.admission_most_steps();
  out.wait.kind = static_cast<core::WaitAdmissionOptions::Kind>(options.wait());
  if (options.wait() != 0) {
    if (options.wait_fixed_tokens() != 0) out.wait.fixed_tokens = options.wait_fixed_tokens();
    out.wait.most_steps = options.wait_most_steps();
  }
  if (options.hold_after_steps() != 0) out.hold_after_steps = options.hold_after_steps();
  BFIO_RETURN_IF_ERROR(Check()
                           .In("admission", options.admission(), 0, 3)
                           .In("admission_most_steps", out.admission.most_steps, 1, kMaxCount)
                           .In("wait", options.wait(), 0, 2)
                           .Real("wait_fixed_tokens", out.wait.fixed_tokens.value_or(1), 1.0, 1e12)
                           .In("wait_most_steps", out.wait.most_steps, 1, kMaxCount)
                           .Real("admission_confidence", out.admission.confidence, 0.0, 1 - 1e-15)
                           .Real("admission_alpha", out.admission.alpha, 0.0, 1.0)
                           .In("hold_after_steps", out.hold_after_steps, 1, kMaxCount)
                           .In("max_waiting", out.max_waiting, 0, kMaxCount)
                           .In("window", out.window, 0, kMaxCount)
                           .In("report_delay_steps", out.report_delay_steps, 0, 1 << 20)
                           .status());
  return out;
}

absl::StatusOr<core::PolicySetting> FromLog(const v1::LoggedPolicy& policy) {
  core::PolicySetting out;
  out.name = policy.name();
  out.options.seed = policy.seed();
  out.options.horizon = policy.horizon();
  out.options.objective = policy.objective();
  out.options.discount = policy.discount();
  out.options.choices = policy.choices();
  if (policy.wait_ratio() != 0) out.options.wait_ratio = policy.wait_ratio();
  BFIO_RETURN_IF_ERROR(
      Check()
          .In("length of the policy's name", static_cast<int64_t>(out.name.size()), 1, 100)
          .In("horizon", out.options.horizon, 0, core::kMaxHorizonSteps)
          .In("choices", out.options.choices, 1, 1 << 16)
          .Real("wait_ratio", out.options.wait_ratio, core::kLeastWaitRatio, core::kMostWaitRatio)
          .status());
  return out;
}

absl::StatusOr<core::RequestSpec> FromLog(const v1::LoggedRequest& request, core::RequestId base) {
  core::RequestSpec spec;
  spec.id = IdIn(request.id(), base);
  spec.prefill_tokens = request.prefill_tokens();
  spec.computed_tokens = request.computed_tokens();
  spec.max_new_tokens = request.max_new_tokens();
  if (request.has_predicted_output_tokens()) spec.predicted_output_tokens = request.predicted_output_tokens();
  spec.priority = request.priority();
  spec.tenant = request.tenant();
  spec.generated_tokens = request.generated_tokens();
  spec.seniority = request.seniority();
  if (request.has_waited_steps()) spec.waited_steps = request.waited_steps();
  spec.refusals = request.refusals();
  spec.steps_alone = request.steps_alone();
  spec.model = request.model();
  if (request.has_held_group() != request.has_held_worker())
    return absl::InvalidArgumentError("held_group and held_worker must both be set or both be unset");
  if (request.has_held_group()) spec.held_to = {request.held_group(), request.held_worker()};
  if (request.has_ttft_objective_s()) spec.ttft_objective_s = request.ttft_objective_s();
  if (request.deadline_us() != 0) spec.deadline_us = request.deadline_us();
  BFIO_RETURN_IF_ERROR(
      Check()
          .In("prefill_tokens", spec.prefill_tokens, 1, kMaxRequestTokens)
          .In("computed_tokens", spec.computed_tokens, 0, spec.prefill_tokens - 1)
          .In("max_new_tokens", spec.max_new_tokens, 1, kMaxRequestTokens)
          .In("predicted_output_tokens", spec.predicted_output_tokens.value_or(0), 0, kMaxRequestTokens)
          .In("generated_tokens", spec.generated_tokens, 0, kMaxRequestTokens)
          .In("seniority", spec.seniority, -kMaxStep, kMaxStep)
          .In("waited_steps", spec.waited_steps.value_or(0), 0, kMaxStep)
          .In("refusals", spec.refusals, 0, std::numeric_limits<int32_t>::max() - 1)
          .In("steps_alone", spec.steps_alone, 0, std::numeric_limits<int32_t>::max() - 1)
          .Real("ttft_objective_s", spec.ttft_objective_s.value_or(0), 0, kMaxTime)
          .In("held_group", spec.held_to ? spec.held_to->group : 0, 0, std::numeric_limits<int32_t>::max())
          .In("held_worker", spec.held_to ? spec.held_to->worker : 0, 0, kMaxWorkers - 1)
          .In("prefix", request.prefix_size(), 0, spec.prefill_tokens / core::kPrefixBlockTokens)
          .status());
  if (request.prefix_size() > 0) {
    spec.prefix =
        std::make_shared<const std::vector<uint64_t>>(request.prefix().begin(), request.prefix().end());
  }
  return spec;
}

absl::StatusOr<std::vector<core::EpochMember>> FromLog(const v1::LoggedEpoch& epoch, core::RequestId base) {
  absl::Status status = Check().In("workers", epoch.members_size(), 0, kMaxWorkers).status();
  if (!status.ok()) return status;
  std::vector<core::EpochMember> members(static_cast<size_t>(epoch.members_size()));
  for (int g = 0; g < epoch.members_size(); ++g) {
    const v1::LoggedMember& from = epoch.members(g);
    BFIO_ASSIGN_OR_RETURN(core::WorkerSpec spec, SpecIn(from.worker()));
    status = Check().Same("resident", from.resident_size(), from.resident_kv_tokens_size()).status();
    if (!status.ok()) return status;
    members[g].spec = spec;
    const std::vector<core::RequestId> ids = IdsIn(from.resident(), base);
    for (int i = 0; i < from.resident_size(); ++i)
      members[g].resident.push_back({ids[i], from.resident_kv_tokens(i)});
    for (const v1::LoggedRequest& request : from.recovered()) {
      BFIO_ASSIGN_OR_RETURN(core::RequestSpec recovered, FromLog(request, base));
      members[g].recovered.push_back(std::move(recovered));
    }
  }
  return members;
}

absl::StatusOr<core::ClusterState> FromLog(const v1::LoggedState& state, core::RequestId base) {
  core::ClusterState out;
  absl::Status status = Check().In("workers", state.workers_size(), 0, kMaxWorkers).status();
  if (status.ok()) status = GroupsIn(state, base, out);
  if (!status.ok()) return status;
  for (const v1::LoggedState::Waiting& waiting : state.waiting()) {
    BFIO_ASSIGN_OR_RETURN(core::RequestSpec spec, FromLog(waiting.request(), base));
    status = Check().In("enqueued_step", waiting.enqueued_step(), -kMaxStep, kMaxStep).status();
    if (!status.ok()) return status;
    out.pool.waiting.push_back(
        {std::move(spec), waiting.enqueued_step(), waiting.held_back(), waiting.passed_over()});
  }
  for (const v1::LoggedState::Tenant& tenant : state.tenants()) {
    status = Check().Real("served", tenant.served(), -1e300, 1e300).status();
    if (!status.ok()) return status;
    out.pool.service.tenants.push_back({tenant.tenant(), tenant.served()});
  }
  status = PoolIn(state.pool(), out);
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<core::SchedulerEvent> FromLog(const v1::LoggedWorkerTime& time) {
  core::WorkerSpec spec;
  Check check;
  CostIn(time, check, spec.cost);
  if (time.has_service_time()) {
    spec.service_time = time.service_time();
  } else if (!time.has_cost()) {
    spec.time_per_token = time.time_per_token();
    spec.time_offset = time.time_offset();
    spec.prefill_time = time.prefill_time();
  }
  BFIO_RETURN_IF_ERROR(CheckTimes(spec, check).status());
  if (spec.cost) return core::SetCost{time.group(), time.rank(), *spec.cost};
  if (time.has_service_time()) return core::SetServiceTime{time.group(), time.rank(), spec.service_time};
  return core::SetTime{time.group(), time.rank(), spec.time_per_token, spec.time_offset, spec.prefill_time};
}

absl::StatusOr<core::AddGroup> FromLog(const v1::LoggedAddGroup& add) {
  BFIO_RETURN_IF_ERROR(
      Check().In("group", add.group(), 0, kMaxGroup).In("kind", add.kind(), 0, kMaxKind).status());
  return core::AddGroup{add.group(), static_cast<core::GroupKind>(add.kind())};
}

absl::StatusOr<core::Plan> FromLog(const v1::LoggedPlan& plan, core::RequestId base) {
  BFIO_RETURN_IF_ERROR(Check()
                           .Same("placed, workers", plan.placed_size(), plan.workers_size())
                           .Same("placed, wait_steps", plan.placed_size(), plan.wait_steps_size())
                           .Same("dropped, drop_workers", plan.dropped_size(), plan.drop_workers_size())
                           .status());
  core::Plan out;
  out.apply_step = plan.apply_step();
  out.apply_steps.assign(plan.apply_steps().begin(), plan.apply_steps().end());
  const std::vector<core::RequestId> placed = IdsIn(plan.placed(), base),
                                     dropped = IdsIn(plan.dropped(), base);
  for (int i = 0; i < plan.placed_size(); ++i)
    out.placements.push_back({placed[i], plan.workers(i), plan.wait_steps(i)});
  for (int i = 0; i < plan.dropped_size(); ++i) out.drops.push_back({dropped[i], plan.drop_workers(i)});
  if (plan.has_level_s()) out.level_s = plan.level_s();
  return out;
}

absl::StatusOr<std::optional<core::PlacementRule>> RuleFromLog(const v1::LoggedPlan& plan) {
  if (!plan.has_placement_rule()) return std::nullopt;
  constexpr auto kLast = static_cast<int32_t>(core::PlacementRule::kCounts);
  BFIO_RETURN_IF_ERROR(Check().In("placement_rule", plan.placement_rule(), 0, kLast).status());
  return static_cast<core::PlacementRule>(plan.placement_rule());
}

absl::Status FromLog(const v1::LoggedReport& report, core::RequestId base, OwnedReport& out) {
  const bool exact = report.exact_hints_size() > 0;
  absl::Status status =
      Check()
          .In("load_tokens", report.load_tokens(), -kMaxLoadTokens, kMaxLoadTokens)
          .In("extra_slots", report.extra_slots(), -kMaxSlots, kMaxSlots)
          .In("shared_kv_tokens", report.shared_kv_tokens(), 0, kMaxLoadTokens)
          .Same("cached_ids, cached_tokens", report.cached_ids_size(), report.cached_tokens_size())
          .Same("hint_ids, hints", report.hint_ids_size(),
                exact ? report.exact_hints_size() : report.hints_size())
          .status();
  if (!status.ok()) return status;
  out.event.group = report.group();
  out.event.worker = report.rank();
  core::StepReport& to = out.event.report;
  out.finished = IdsIn(report.finished(), base);
  out.rejected = IdsIn(report.rejected(), base);
  out.preempted = IdsIn(report.preempted(), base);
  out.hints.clear();
  const std::vector<core::RequestId> ids = IdsIn(report.hint_ids(), base);
  for (int i = 0; i < report.hint_ids_size(); ++i) {
    const double probability = exact ? report.exact_hints(i) : double{report.hints(i)};
    status = Check().Real("hint", probability, 0.0, 1.0).status();
    if (!status.ok()) return status;
    out.hints.push_back({ids[i], probability});
  }
  to.step = report.step();
  to.applied_plan = static_cast<int64_t>(static_cast<uint64_t>(report.step()) -
                                         static_cast<uint64_t>(report.applied_behind()));
  to.load_tokens = report.load_tokens();
  to.group_idle = report.group_idle();
  to.extra_slots = report.extra_slots();
  to.shared_kv_tokens = report.shared_kv_tokens();
  to.finished = out.finished;
  to.rejected = out.rejected;
  to.preempted = out.preempted;
  to.hints = out.hints;
  to.prefill.reset();
  Check check;
  out.cached.clear();
  for (int i = 0; i < report.cached_ids_size(); ++i) {
    out.cached.push_back({IdIn(report.cached_ids(i), base), report.cached_tokens(i)});
    check.In("cached_tokens", report.cached_tokens(i), 0, kMaxLoadTokens);
  }
  to.cached = out.cached;
  return PrefillIn(report, base, check, to.prefill).status();
}

}  // namespace bfio::record
