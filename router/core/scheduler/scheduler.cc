#include "router/core/scheduler/scheduler.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "router/core/scheduler/barrier_scheduler.h"
#include "router/core/scheduler/independent_scheduler.h"

namespace bfio::core {

std::unique_ptr<Scheduler> MakeScheduler(GroupKind kind, const SchedulerOptions& options, RequestPool* pool,
                                         std::unique_ptr<Policy> policy) {
  if (kind == GroupKind::kBarrier)
    return std::make_unique<BarrierScheduler>(kind, options, pool, std::move(policy));
  return std::make_unique<IndependentScheduler>(kind, options, pool, std::move(policy));
}

Scheduler::Scheduler(GroupKind kind, const SchedulerOptions& options, RequestPool* pool,
                     std::unique_ptr<Policy> policy)
    : kind_(kind),
      options_(options),
      pool_(pool),
      accounts_(pool, &totals_),
      maker_(kind, options, pool, &accounts_, &totals_, std::move(policy)) {}

// --- events ---

std::vector<RequestId> Scheduler::OpenEpoch(const std::vector<EpochMember>& members, uint32_t model,
                                            uint32_t lacks) {
  std::vector<RequestId> displaced = accounts_.Open(members);
  // The clock of policies must not go back. There may have been a decision without a plan, or a step without
  // a plan.
  const int64_t reported = std::exchange(reported_step_, 0), decided = std::exchange(decided_step_, 0);
  const int64_t last = std::max({ResetSteps(), reported, decided});
  pool_->pool_clock().BeginEpoch(pool_->pool_clock().now() + last - reported);
  open_ = num_workers() > 0;
  ability_ = {model, lacks, 0};
  for (const EpochMember& member : members)
    ability_.max_sequence_tokens = std::max(ability_.max_sequence_tokens, member.spec.longest());
  return displaced;
}

absl::Status Scheduler::OnReport(WorkerIndex worker, const StepReport& report) {
  const int64_t planned = Has(worker) ? PlannedStep(accounts_.worker(worker)) : 0;
  BFIO_RETURN_IF_ERROR(accounts_.Check(worker, report, planned, kind_ == GroupKind::kBarrier));
  accounts_.Take(worker, report);
  CountReport(report.step);
  return absl::OkStatus();
}

std::optional<Plan> Scheduler::MakePlan(const core::MakePlan& event, int64_t slots_elsewhere,
                                        const Room& room, std::optional<DecisionMaker::Answer>& answer) {
  if (!open_) return std::nullopt;
  maker_.SetRoom(room);
  maker_.SetSlotsElsewhere(slots_elsewhere);
  if (event.rule) maker_.ObeyRule(*event.rule);
  return Decide(event.force, answer);
}

std::optional<DecisionMaker::Answer> Scheduler::DecideAndRecord(const PlanSteps& steps, Plan& plan) {
  const std::optional<DecisionMaker::Answer> answer = maker_.Decide(steps, plan);
  if (!answer) return answer;
  decided_step_ = steps.step;
  plan.stopped_early = answer->stopped_early;
  return answer;
}

// --- views ---

Scheduler::WorkerAccount Scheduler::Account(WorkerIndex index) const {
  const GroupAccounts::Worker& w = accounts_.worker(index);
  WorkerAccount account;
  account.spec = w.spec;
  account.active = w.active;
  account.inflight = w.inflight_placements;
  account.load_tokens = w.base + w.active * (w.last_step + 1);
  account.reserved_kv_tokens = w.reserved_kv;
  account.last_step = w.last_step;
  account.idle = Idle(w);
  account.prefill = w.prefill;
  return account;
}

Scheduler::Slots Scheduler::slots() const {
  Slots slots{accounts_.free_slots()};
  for (const GroupAccounts::Worker& worker : accounts_.workers()) {
    slots.total += worker.spec.slots;
    slots.in_use += worker.spec.slots + std::min(0, worker.extra_slots);
  }
  return slots;
}

double Scheduler::KvTokens() const {
  double sum = 0;
  for (const GroupAccounts::Worker& worker : accounts_.workers())
    sum += static_cast<double>(worker.spec.kv_tokens);
  return sum;
}

int64_t Scheduler::HeldTokens() const {
  int64_t sum = 0;
  for (const GroupAccounts::Worker& worker : accounts_.workers())
    sum +=
        std::max<int64_t>(0, worker.base + worker.inflight_base + worker.placed() * (worker.last_step + 1));
  return sum;
}

Scheduler::StepCost Scheduler::StepCosts() const {
  StepCost sum;
  for (const GroupAccounts::Worker& worker : accounts_.workers()) {
    const std::optional<BatchCost>& cost = worker.spec.cost;
    // A fit without this term cannot separate the fixed and the proportional part.
    if (!cost || !(cost->k2_s_per_token > 0)) continue;
    sum.fixed_s += cost->Seconds(std::max<int64_t>(1, worker.active));
    sum.per_token_s += cost->k2_s_per_token;
  }
  return sum;
}

void Scheduler::AppendPromptSites(const RequestSpec& request, const GroupCost& assumed,
                                  std::vector<PromptSite>& sites) const {
  if (!open_) return;
  PrefixView prefixes;
  accounts_.ReadPrefixes(prefixes);
  const bool decodes = kind_ != GroupKind::kPrefill;
  for (WorkerIndex g = 0; g < num_workers(); ++g) {
    const GroupAccounts::Worker& worker = accounts_.worker(g);
    const int64_t held = worker.base + worker.inflight_base + worker.placed() * (worker.last_step + 1);
    // A prompt may wait for a prefill rank; one for a rank that decodes waits for other requests to end.
    if (decodes && (worker.free_slots() == 0 || request.prefill_tokens > worker.kv_tokens() - held)) continue;
    PromptSite& site = sites.emplace_back();
    site.cost = worker.spec.cost ? GroupCost{*worker.spec.cost, worker.spec.terms} : assumed;
    site.decodes = decodes;
    site.rows = decodes ? worker.placed() : 0;
    site.pending = decodes || worker.prefill ? prefixes.pending[g] : std::max<int64_t>(0, held);
    site.delayed = static_cast<double>(decodes && !StepsAlone(kind_) ? placed() : worker.placed());
    int64_t cached = 0;
    if (prefixes.caches != nullptr) {
      cached = prefixes.caches->Trusted(
          g, prefixes.caches->Find(g, request.prefix_blocks(), request.prefill_tokens));
    }
    site.prompt = {request.prefill_tokens - cached, cached};
  }
}

}  // namespace bfio::core
