#include "router/engine_link/placed_rank.h"

#include <utility>

namespace bfio::router {

void PlacedRank::OnEpoch(const EpochOffer& offer, absl::Time now, Output& out) {
  // The group counts steps anew, and the ages of requests continue.
  Advance(now);
  const int64_t before = open() ? Steps() : 0;
  EngineRank::OnEpoch(offer, now, out);
  for (auto& [number, call] : calls_) call.first_step -= before;
  steps_ -= static_cast<double>(before);
  counted_steps_ -= static_cast<double>(before);
}

void PlacedRank::Begin(Call& call, const EngineCall&, absl::Time now) {
  Advance(now);
  call.first_step = Steps();
}

void PlacedRank::OnStep(const EngineStep& step, absl::Time now, Output&) {
  constexpr int64_t kMostMissed = 1000;
  Advance(now);
  heard_at_ = now;
  // A number that does not follow is that of a restarted engine, or of one that was away for long.
  int64_t steps = heard_step_ ? step.step - *heard_step_ : 1;
  if (steps < 1 || steps > kMostMissed) steps = 1;
  heard_step_ = step.step;
  const bool worked = step.took > absl::ZeroDuration() && (step.decodes > 0 || step.prompt_tokens > 0);
  if (worked) {
    // Those that are missing were most likely as this one.
    heard_.steps += steps;
    heard_.decodes += steps * step.decodes;
    heard_.prefills += steps * step.prefills;
    heard_.most = std::max(heard_.most, step.decodes + step.prefills);
    heard_.took += step.took;
    heard_.longest = std::max(heard_.longest, step.took);
  }
  if (!believed_) return;
  if (worked) {
    Worked(now);
    steps_ += static_cast<double>(steps);
  }
  if (options_.barrier == nullptr) return;
  if (worked) options_.barrier->cost.Add(options_.number, step.batch(), step.took);
  // Missing steps would count as those of a rank that is slower.
  options_.barrier->watch.OnStep(options_.number, worked && step.decodes > 0 && steps == 1);
}

void PlacedRank::CheckSteps(absl::Time now, Output& out) {
  // Counts and reports come at different times: two steps, as far as these are not most of all, and a quarter
  // of the others may be in one of them only. Some prompts have generated a token.
  constexpr double kShare = 0.75;
  if (heard_.steps < kCheckSteps || now - heard_.checked_at < kCheckEvery) return;
  const auto tokens = static_cast<double>(*counted_ - heard_.counted);
  const auto decodes = static_cast<double>(heard_.decodes);
  const auto slack = static_cast<double>(std::min(2 * heard_.most, (heard_.decodes + heard_.prefills) / 4));
  believed_ = tokens + slack >= kShare * decodes &&
              kShare * tokens <= decodes + static_cast<double>(heard_.prefills) + slack &&
              kShare * (heard_.took - 2 * heard_.longest) <= now - heard_.checked_at;
  if (!believed_ && !std::exchange(doubted_, true))
    out.warning = "its step metrics are not used while they disagree with its count of generated tokens";
  heard_ = {.checked_at = now, .counted = *counted_};
}

void PlacedRank::OnLoad(std::optional<EngineLoad> load, absl::Time now, Output& out) {
  Advance(now);
  TakeCount(load, now, out);
  const int64_t others = load_.others();
  TakeLoad(std::move(load), now);
  if ((load_.others() != others || !calls_.empty() || LoadIsNew()) && open() && !Hangs(now))
    EndStep(now, out);
}

void PlacedRank::Advance(absl::Time now) {
  const absl::Duration since =
      std::max(absl::ZeroDuration(), now - std::exchange(advanced_at_, std::max(now, advanced_at_)));
  const int64_t running = std::min<int64_t>(options_.slots, InEngine() + load_.others());
  if (since == absl::InfiniteDuration()) return;
  if (InEngine() == 0 && CountsTokens()) worked_at_ += since;
  if (running == 0) return;
  ran_ += since;
  requests_ran_ += running * since;
  if (usual_step_ > absl::ZeroDuration() && !FollowsSteps(now))
    steps_ += absl::FDivDuration(since, usual_step_);
}

void PlacedRank::TakeCount(const std::optional<EngineLoad>& load, absl::Time now, Output& out) {
  const std::optional<int64_t> before =
      std::exchange(counted_, load ? load->generated : std::optional<int64_t>());
  const bool comparable = before && counted_ && *counted_ >= *before, followed = FollowsSteps(now);
  if (comparable) {
    CheckSteps(now, out);
  } else {
    believed_ = false;
    heard_ = {.checked_at = now, .counted = counted_.value_or(0)};
  }
  // Some engines count a request's tokens when it ends, so the time until then counts, too.
  if (before == counted_ && before) return;
  const absl::Duration requests_ran = std::exchange(requests_ran_, absl::ZeroDuration());
  if (!comparable || requests_ran <= absl::ZeroDuration()) return;
  // Every running request generates a token in each step. This is a mean over many steps.
  const absl::Duration took = std::max(requests_ran / (*counted_ - *before), absl::Microseconds(1));
  usual_step_ = usual_step_ == absl::ZeroDuration() ? took : (usual_step_ + took) / 2;
  const absl::Duration ran = std::exchange(ran_, absl::ZeroDuration());
  if (!followed) steps_ = counted_steps_ + absl::FDivDuration(ran, took);
  counted_steps_ = steps_;
}

void PlacedRank::EndStep(absl::Time now, Output& out) {
  Advance(now);
  StepReport report = BeginReport(Steps());
  for (const auto& [number, call] : calls_) {
    // The first token takes a step.
    const int64_t generated = std::clamp<int64_t>(step_ - call.first_step, 0, call.max_new_tokens);
    report.load_tokens += call.prompt_tokens + generated;
    if (!call.finished) continue;
    report.finished.push_back(
        {call.id, *call.finished, static_cast<uint32_t>(std::max<int64_t>(1, generated))});
  }
  report.extra_slots = static_cast<int32_t>(MostCalls() - options_.slots);
  SendReport(std::move(report), now, out);
}

}  // namespace bfio::router
