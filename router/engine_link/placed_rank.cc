#include "router/engine_link/placed_rank.h"

#include <algorithm>

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

void PlacedRank::OnLoad(std::optional<EngineLoad> load, absl::Time now, Output& out) {
  Advance(now);
  TakeCount(load);
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
  if (usual_step_ > absl::ZeroDuration()) steps_ += absl::FDivDuration(since, usual_step_);
}

void PlacedRank::TakeCount(const std::optional<EngineLoad>& load) {
  const std::optional<int64_t> before =
      std::exchange(counted_, load ? load->generated : std::optional<int64_t>());
  // Some engines count a request's tokens when it ends, so the time until then counts, too.
  if (before == counted_ && before) return;
  const absl::Duration requests_ran = std::exchange(requests_ran_, absl::ZeroDuration());
  if (!before || !counted_ || *counted_ < *before || requests_ran <= absl::ZeroDuration()) return;
  // Every running request generates a token in each step. This is a mean over many steps.
  const absl::Duration took = std::max(requests_ran / (*counted_ - *before), absl::Microseconds(1));
  usual_step_ = usual_step_ == absl::ZeroDuration() ? took : (usual_step_ + took) / 2;
  steps_ = counted_steps_ + absl::FDivDuration(std::exchange(ran_, absl::ZeroDuration()), took);
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
