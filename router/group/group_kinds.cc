#include "router/group/group_kinds.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace bfio::router {
namespace {

// How long ranks may stay silent after a barrier failed: the failure reaches all ranks, which report it at
// once.
constexpr absl::Duration kSilenceGrace = absl::Milliseconds(100);
constexpr absl::Duration kSilencePoll = absl::Milliseconds(10);

}  // namespace

// --- forming ---

void BarrierGroup::FillOffer(const Member& member, EpochOffer& offer) const {
  offer.rank = static_cast<uint32_t>(member.next_rank);
  offer.world_size = static_cast<uint32_t>(ranks_.size());
  offer.communicator_id = ranks_.front()->offer;
}

void BarrierGroup::OnLateToForm(Member& member, const absl::Status& why, const Context& context) {
  Punish(member, why, context);
}

void BarrierGroup::OnFormingFailed(const Context& context) {
  if (PunishBlamed(context)) return;
  // A single failure can be chance. After a second one the newest rank is the likeliest cause: it may reach
  // the router but not the other ranks, and if some ranks were never part of a working group, it is one of
  // them.
  if (++failures_ > 1 && ranks_.size() > 1)
    return Punish(*ranks_.back(), absl::UnavailableError("the group cannot form an epoch with this worker"),
                  context);
  Reform(kSettleAfterFailure, false, context);
}

void BarrierGroup::OnMissing(Member& member, absl::Span<const uint32_t> missing) {
  if (missing.empty()) return;
  const absl::flat_hash_set<uint32_t> named(missing.begin(), missing.end());
  std::vector<Member*> blamed;
  for (Member* rank : ranks_) {
    if (rank != &member && named.contains(static_cast<uint32_t>(rank->next_rank))) blamed.push_back(rank);
  }
  // A member that misses more than half of the ranks is the one that is cut off.
  if (2 * blamed.size() > ranks_.size()) {
    member.blamed = true;
    return;
  }
  member.blames = true;
  for (Member* rank : blamed) rank->blamed = true;
}

bool BarrierGroup::PunishBlamed(const Context& context) {
  std::vector<Member*> culprits;
  for (Member* rank : ranks_) {
    // A rank that blames others is not a culprit: in a tree, a rank may be late because it waited for
    // another.
    if (rank->blamed && !rank->blames) culprits.push_back(rank);
    rank->blamed = rank->blames = false;
  }
  if (culprits.size() == ranks_.size()) return false;
  for (Member* rank : culprits)
    Punish(*rank, absl::UnavailableError("other ranks cannot reach this one"), context);
  return !culprits.empty();
}

bool BarrierGroup::PrepareToForm(const Context& context) {
  if (context.now < silence_end_ && AnyBehind()) {
    deadline_ = std::min(context.now + kSilencePoll, silence_end_);
    return false;
  }
  // If an unresponsive rank were part of the epoch, the others would wait for it for all of form_timeout.
  if (std::exchange(silence_end_, absl::InfinitePast()) != absl::InfinitePast())
    ExpelSilent(absl::ZeroDuration(), context);
  PunishBlamed(context);
  return true;
}

// --- steps ---

void BarrierGroup::OnOpened(absl::Time now) {
  failures_ = 0;
  report_deadline_ = absl::InfiniteFuture();
  stall_deadline_ = StalledAt(now);
  plan_delay_ = {};
  complete_at_ = now;
  complete_step_ = scheduler().reported_step();
  late_plans_ = scheduler().totals().late_plans;
}

void BarrierGroup::OnClosed() {
  report_deadline_ = stall_deadline_ = absl::InfiniteFuture();
  plan_at_ = absl::InfinitePast();
  force_ = false;
}

void BarrierGroup::OnProgress(Member& member, const StepReport& report, const Context& context) {
  member.reported_step = report.step;
  newest_step_ = std::max(newest_step_, report.step);
  for (Member* rank : ranks_) {
    if (rank->reported_step == newest_step_) {
      rank->behind_since = absl::InfiniteFuture();
    } else if (rank == &member || rank->behind_since == absl::InfiniteFuture()) {
      rank->behind_since = context.now;
    }
  }
  if (!serving()) return;
  stall_deadline_ = StalledAt(context.now);
  if (!scheduler().ReportsMissing()) {
    report_deadline_ = absl::InfiniteFuture();
  } else if (report_deadline_ == absl::InfiniteFuture()) {
    report_deadline_ = context.now + options_.report_timeout;
  }
  if (scheduler().reported_step() != complete_step_) OnStepReported(context.now);
}

void BarrierGroup::OnStepReported(absl::Time now) {
  // The delayed plan has not been made either: its step has begun.
  const bool late = now < plan_at_ || scheduler().totals().late_plans > late_plans_;
  const double delay_s = plan_delay_.OnStep(absl::ToDoubleSeconds(now - complete_at_), late);
  complete_at_ = now;
  complete_step_ = scheduler().reported_step();
  late_plans_ = scheduler().totals().late_plans;
  // The plan is not delayed while the group waits for it.
  const bool ahead = options_.plan_mode == core::PlanMode::kPipelined && !scheduler().Parked();
  plan_at_ = ahead && delay_s > 0 ? now + absl::Seconds(delay_s) : absl::InfinitePast();
}

// No rank has passed the failed barrier, so ranks get kSilenceGrace to report the failure before their
// silence counts.
void BarrierGroup::OnBarrierLost(const Context& context) {
  silence_end_ = context.now + kSilenceGrace;
}

void BarrierGroup::OnPlanSent(absl::Time now) {
  stall_deadline_ = StalledAt(now);
}

bool BarrierGroup::TakeForce() {
  return std::exchange(force_, false) && scheduler().ReportsMissing();
}

absl::Time BarrierGroup::step_deadline() const {
  const absl::Time deadline = std::min(report_deadline_, stall_deadline_);
  return plan_at_ == absl::InfinitePast() ? deadline : std::min(deadline, plan_at_);
}

void BarrierGroup::OnStepTimer(const Context& context) {
  if (context.now >= plan_at_) plan_at_ = absl::InfinitePast();
  if (context.now >= report_deadline_) {
    report_deadline_ = absl::InfiniteFuture();
    force_ = scheduler().ReportsMissing();
  }
  if (context.now < stall_deadline_) return;
  stall_deadline_ = absl::InfiniteFuture();
  if (!scheduler().Parked())
    OnBarrierError(*ranks_.front(), "no rank has reported a step in time", {}, context);
}

void BarrierGroup::RecordStep(core::WorkerIndex rank, const StepReport& report, absl::Time now,
                              StepStatistics::Summaries& done) {
  steps_.OnReport(rank, report, now);
}

void BarrierGroup::RecordDecision(const core::Plan& plan, absl::Duration took,
                                  StepStatistics::Summaries& done) {
  steps_.OnDecision(plan, cluster_->waiting(), took, Saturated(), done);
}

namespace {

// Ranks without a barrier have no peers to connect to; they only end their step. They get at least
// kLeastFormTime, and kFormSteps times the longest step so far.
constexpr absl::Duration kLeastFormTime = absl::Seconds(2);
constexpr int kFormSteps = 4;

}  // namespace

absl::Status IndependentGroup::CheckKind(const WorkerHello& hello) const {
  if (!hello.steps_alone) {
    return absl::FailedPreconditionError(
        "the router runs with --coupling=none, which this version of the worker does not support");
  }
  return absl::OkStatus();
}

void IndependentGroup::FillOffer(const Member& member, EpochOffer& offer) const {
  offer.rank = 0;
  offer.world_size = 1;
  offer.communicator_id = member.offer;
  offer.independent = true;
}

absl::Duration IndependentGroup::FormTime() const {
  const absl::Duration most = options_.form_timeout + kFormGrace;
  absl::Duration longest;
  for (const Member* rank : ranks_) {
    const bool first_step =
        rank->behind_since != absl::InfiniteFuture() && rank->longest_step == absl::ZeroDuration();
    if (first_step || rank->recovering) return most;
    longest = std::max(longest, rank->longest_step);
  }
  return std::min(most, std::max(kLeastFormTime, kFormSteps * longest));
}

// Each rank fails on its own.
void IndependentGroup::OnFormingFailed(const Context& context) {
  std::vector<Member*> failed;
  for (Member* rank : ranks_) {
    if (!rank->ready) failed.push_back(rank);
  }
  for (Member* rank : failed) Punish(*rank, absl::UnavailableError("it cannot form an epoch"), context);
}

void IndependentGroup::OnLateToForm(Member& member, const absl::Status& why, const Context& context) {
  // A rank that has served may be in a step that is longer than all before, so it may reconnect at once.
  if (member.rank) {
    CutOff(member, why, context);
  } else {
    Punish(member, why, context);
  }
}

void IndependentGroup::OnProgress(Member& member, const StepReport& report, const Context& context) {
  if (member.behind_since != absl::InfiniteFuture())
    member.longest_step = std::max(member.longest_step, context.now - member.behind_since);
  member.behind_since = scheduler().Account(*member.rank).idle ? absl::InfiniteFuture() : context.now;
}

void IndependentGroup::OnPartSent(Member& member, absl::Time now) {
  member.behind_since = std::min(member.behind_since, now);
}

void IndependentGroup::RecordStep(core::WorkerIndex rank, const StepReport& report, absl::Time now,
                                  StepStatistics::Summaries& done) {
  steps_.OnStepAlone(rank, report, now, Saturated(), done);
}

// Saturation is counted per step here, not per decision: decisions happen only when requests arrive.
void IndependentGroup::RecordDecision(const core::Plan& plan, absl::Duration took,
                                      StepStatistics::Summaries& done) {
  steps_.OnDecision(plan, cluster_->waiting(), took, /*saturated=*/false, done);
}

}  // namespace bfio::router
