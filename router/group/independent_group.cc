#include "router/group/independent_group.h"

#include <algorithm>
#include <vector>

namespace bfio::router {
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
