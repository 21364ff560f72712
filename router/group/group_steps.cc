// Steps of Group: reports in, plans out.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"
#include "router/group/group.h"

namespace bfio::router {

// --- reports ---

void Group::OnReport(MemberId id, const StepReport& report, absl::Time now, Commands& out) {
  Member* member = Find(id);
  // The report belongs to an epoch that the member has left, or that has not opened.
  if (member == nullptr || !member->rank || report.epoch != member->spoken_epoch ||
      report.epoch != member->rank_epoch) {
    return;
  }
  const Context context{now, out};
  const core::WorkerIndex rank = *member->rank;
  FindPlaced(rank, report);
  if (absl::Status status = ApplyReport(rank, report, out); !status.ok())
    return CutOff(*member, status, context);
  if (report.epoch == epoch_) OnProgress(*member, report, context);
  EmitRequests(report, out);
  TakeTelemetry(*member, report, out);
  StepStatistics::Summaries done;
  RecordStep(rank, report, now, done);
  EmitSteps(done, out);
  if (std::exchange(fit_version_, steps_.fit().version()) != steps_.fit().version()) {
    predicted_ratio_ = steps_.fit().predicted_ratio();
    for (const Member* each : ranks_) ApplyCost(*each);
  }
  // The slowest rank's local time is a lower bound of the step's duration.
  if (report.group_max_local > absl::ZeroDuration() && report.barrier_error.empty()) {
    ++steps_timed_;
    shortest_step_ = std::min(report.group_max_local, shortest_step_.value_or(absl::InfiniteDuration()));
  }
  if (!report.barrier_error.empty())
    OnBarrierError(*member, report.barrier_error, report.missing_ranks, context);
}

void Group::FindPlaced(core::WorkerIndex rank, const StepReport& report) {
  const core::Scheduler& accounts = scheduler();
  const auto find = [&](const auto& entries, const auto& id_of, std::vector<char>& placed) {
    placed.clear();
    for (const auto& entry : entries) placed.push_back(accounts.WorkerOf(id_of(entry)) == rank);
  };
  const auto id = [](const auto& entry) { return entry.id; };
  find(report.tokens, id, placed_here_.tokens);
  find(report.finished, id, placed_here_.finished);
  find(report.rejected, id, placed_here_.rejected);
  find(
      report.preempted, [](core::RequestId preempted) { return preempted; }, placed_here_.preempted);
}

absl::Status Group::ApplyReport(core::WorkerIndex rank, const StepReport& report, Commands& out) {
  finished_ids_.clear();
  rejected_ids_.clear();
  for (const FinishedRequest& finished : report.finished) finished_ids_.push_back(finished.id);
  for (const RejectedRequest& rejected : report.rejected) rejected_ids_.push_back(rejected.id);
  core::Report event{options_.index, rank, {}};
  event.report.step = report.step;
  event.report.applied_plan = report.applied_plan;
  event.report.load_tokens = report.load_tokens;
  event.report.finished = finished_ids_;
  event.report.rejected = rejected_ids_;
  event.report.preempted = report.preempted;
  event.report.hints = report.hints;
  event.report.group_idle = report.group_idle;
  event.report.extra_slots = report.extra_slots;
  event.report.shared_kv_tokens = report.shared_kv_tokens;
  event.report.cache_lost_ppm = report.cache_lost_ppm;
  event.report.prefill = report.prefill;
  event.report.cached = report.cached;
  event.report.cache_changes = report.cache_changes;
  const int64_t drift_before = scheduler().totals().drift_tokens;
  absl::Status status = cluster_->Apply(event).status;
  const int64_t drift = scheduler().totals().drift_tokens - drift_before;
  if (drift != 0) {
    Log(out, LogLine::Level::kDebug, "rank ", rank, " step ", report.step, ": drift of ", drift, " tokens");
  }
  return status;
}

void Group::EmitRequests(const StepReport& report, Commands& out) const {
  size_t next = 0;
  auto logprobs = report.logprobs.begin();
  auto messages = report.messages.begin();
  for (size_t i = 0; i < report.tokens.size(); ++i) {
    const RequestTokens& made = report.tokens[i];
    const size_t first = std::exchange(next, next + made.count);
    LogprobsView of_tokens;
    if (logprobs != report.logprobs.end() && logprobs->index == i) of_tokens = logprobs++->logprobs.view();
    absl::Span<const PassedPtr> of_engine;
    if (messages != report.messages.end() && messages->index == i) of_engine = messages++->messages;
    if (placed_here_.tokens[i]) {
      out.push_back(GeneratedTokens{made.id, absl::MakeConstSpan(report.token_ids).subspan(first, made.count),
                                    of_tokens, of_engine});
    }
  }
  for (size_t i = 0; i < report.finished.size(); ++i) {
    if (placed_here_.finished[i])
      out.push_back(
          RequestFinished{report.finished[i].id, report.finished[i].reason, report.finished[i].generated});
  }
  for (size_t i = 0; i < report.rejected.size(); ++i) {
    if (placed_here_.rejected[i])
      out.push_back(RequestRejected{report.rejected[i].id, report.rejected[i].status});
  }
  // Youngest first: each goes to the front of the pool, so the oldest ends in front. A request that the
  // scheduler still has was not active, so it was not preempted.
  auto handed_over = report.handed_over.begin();
  for (size_t i = 0; i < report.preempted.size(); ++i) {
    HandOffPtr hand_off;
    if (handed_over != report.handed_over.end() && handed_over->index == i)
      hand_off = handed_over++->hand_off;
    if (placed_here_.preempted[i] && !cluster_->Knows(report.preempted[i]))
      out.push_back(RequestPreempted{report.preempted[i], std::move(hand_off)});
  }
}

void Group::OnBarrierError(Member& member, absl::string_view why, absl::Span<const uint32_t> missing,
                           const Context& context) {
  if (member.rank_epoch != epoch_) return;
  OnMissing(member, missing);
  if (!serving()) return;
  Log(context.out, LogLine::Level::kWarning, member.hello, " lost the barrier of epoch ", epoch_, ": ", why);
  OnBarrierLost(context);
  Reform(kSettleAfterLoss, true, context);
}

// --- what steps cost ---

void Group::TakeTelemetry(Member& member, const StepReport& report, Commands& out) {
  if (report.energy) out.push_back(EnergyReported{member.id, *report.energy});
  member.telemetry.step_prefill_tokens = report.prefill_tokens;
  member.telemetry.prefill_tokens += report.prefill_tokens;
  member.telemetry.extra_slots = report.extra_slots;
  member.telemetry.engine_load = report.engine_load;
  member.telemetry.prefix_cache_queries += report.prefix_cache_queries;
  for (const core::CachedPrompt& cached : report.cached) member.telemetry.prefix_cache_hits += cached.tokens;
  if (report.batch_cost) {
    member.telemetry.batch_cost = report.batch_cost;
    ApplyCost(member);
  }
  if (report.predicted_ratio) predicted_ratio_ = report.predicted_ratio;
  if (!report.cost) return;
  member.telemetry.cost = report.cost;
  UpdateTimes(out);
}

const std::optional<GroupCost>& Group::CostOf(const Member& member) const {
  const std::optional<GroupCost>& fitted = steps_.fit().cost();
  const bool alike = std::all_of(ranks_.begin(), ranks_.end(), [](const Member* rank) {
    return rank->telemetry.time.time_per_token == core::WorkerTime().time_per_token;
  });
  return fitted && alike && fitted->terms != GroupTerms() ? fitted : member.telemetry.batch_cost;
}

void Group::ApplyCost(const Member& member) {
  // Only for a rank of the present epoch; the next epoch starts with the stored value.
  if (!member.rank || member.rank_epoch != epoch_) return;
  if (const std::optional<GroupCost>& cost = CostOf(member))
    cluster_->Apply(core::SetCost{options_.index, *member.rank, cost->batch, cost->terms});
}

bool Group::SetServiceTimes(absl::Span<const core::WorkerCost> costs) {
  std::vector<double> announced, present;
  for (const Member* rank : ranks_) {
    announced.push_back(rank->hello.service_s);
    present.push_back(rank->telemetry.service_time);
  }
  const std::vector<double> times = core::ServiceTimesOf(announced, costs, present);
  for (size_t g = 0; g < ranks_.size(); ++g) ranks_[g]->telemetry.service_time = times[g];
  return times != present;
}

void Group::UpdateTimes(Commands& out) {
  if (!serving()) return;
  std::vector<core::WorkerCost> costs;
  std::vector<core::WorkerTime> present;
  for (const Member* rank : ranks_) {
    const int64_t load = scheduler().Account(*rank->rank).load_tokens;
    costs.push_back({rank->telemetry.cost, std::max<int64_t>(0, load)});
    present.push_back(rank->telemetry.time);
  }
  if (SetServiceTimes(costs)) {
    for (const Member* rank : ranks_)
      cluster_->Apply(core::SetServiceTime{options_.index, *rank->rank, rank->telemetry.service_time});
  }
  const std::vector<core::WorkerTime> times = core::TimesOf(costs, present);
  for (size_t g = 0; g < ranks_.size(); ++g) {
    if (times[g] == present[g]) continue;
    Member& rank = *ranks_[g];
    rank.telemetry.time = times[g];
    cluster_->Apply(core::SetTime{options_.index, *rank.rank, times[g].time_per_token, times[g].time_offset});
    Log(out, LogLine::Level::kInfo, rank.hello,
        absl::StrFormat(": step time is now modelled as %.2f x load + %.0f tokens", times[g].time_per_token,
                        times[g].time_offset));
  }
}

// --- decisions ---

bool Group::Decide(absl::Time now, Commands& out) {
  if (!serving() || PutsOffPlan(now)) return false;
  const bool force = TakeForce();
  std::optional<core::Plan> plan = cluster_->Apply(core::MakePlan{options_.index, force}).plan;
  if (!plan && force) plan = cluster_->Apply(core::MakePlan{options_.index, false}).plan;
  if (!plan) return false;
  SendParts(*plan, {now, out});
  OnPlanSent(now);
  last_plan_ = *std::move(plan);
  return true;
}

void Group::SendParts(const core::Plan& plan, const Context& context) {
  std::vector<PlanPart> parts(ranks_.size());
  for (const core::Drop& drop : plan.drops) parts[drop.worker].cancellations.push_back(drop.id);
  for (const core::Placement& placement : plan.placements)
    parts[placement.worker].placements.push_back(placement);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Member& member = *ranks_[rank];
    PlanPart& part = parts[rank];
    part.apply_step = ApplyStepOf(plan, static_cast<core::WorkerIndex>(rank));
    if (part.apply_step == 0) continue;
    part.epoch = epoch_;
    part.model = model_;
    part.level_s = plan.level_s;
    context.out.push_back(SendPlan{member.id, std::move(part)});
    OnPartSent(member, context.now);
  }
}

void Group::Decided(absl::Duration took, Commands& out) {
  StepStatistics::Summaries done;
  RecordDecision(last_plan_, took, done);
  EmitSteps(done, out);
}

void Group::EmitSteps(StepStatistics::Summaries& done, Commands& out) const {
  for (auto& summary : done) out.push_back(StepDone{std::move(summary)});
}

}  // namespace bfio::router
