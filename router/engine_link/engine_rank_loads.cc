// What an engine reports of its rank: other clients' requests, memory that prompts share, tokens generated.
#include <algorithm>
#include <utility>

#include "router/engine_link/engine_rank.h"

namespace bfio::router {

void EngineRank::OnLoad(std::optional<EngineLoad> load, absl::Time now, Output& out) {
  // The engine's KV usage changes, so it works; it may compute other clients' requests first.
  const bool works = load && load_ && load->tokens != load_->tokens;
  if (works) {
    worked_at_ = now;
    if (!calls_changed_ && !calls_.empty() && load->requests == load_->requests) {
      load_shows_work_ = true;
      on_trial_ = false;
    }
  }
  calls_changed_ = false;
  TakeGenerated(load, now);
  // The first report may be older than the most recent requests.
  if (load && (!load_ || load->requests >= InEngine())) load_complete_at_ = now;
  load_ = load;
  const int64_t others = load_ ? OthersIn(*load_) : 0;
  const int64_t before = foreign_;
  if (now - window_since_ >= kLoadWindow) {
    window_since_ = now;
    recent_foreign_.BeginWindow();
    recent_shared_.BeginWindow();
  }
  foreign_ = recent_foreign_.Take(others);
  shared_ = recent_shared_.Take(Shared());
  const bool quiet_step = works && !calls_.empty() && now - last_report_at_ >= kQuietStep;
  // An idle rank has no other report with which this one would go.
  const bool told = !calls_.empty() || told_load_ == load_;
  if ((foreign_ != before || quiet_step || !told) && open() && !Hangs(now)) EndStep(now, out);
}

int64_t EngineRank::OthersIn(const EngineLoad& load) const {
  // One slot always remains for the router, whatever an engine reports; not where it may really be used by
  // requests that an earlier router has placed.
  return std::clamp<int64_t>(load.requests - InEngine(), 0, options_.slots - (options_.load ? 0 : 1));
}

void EngineRank::TakeGenerated(const std::optional<EngineLoad>& load, absl::Time now) {
  if (!AnyWhole() || !load || !load->generated) return counted_.reset();
  const std::optional<Counted> before =
      std::exchange(counted_, Counted{*load->generated, load->requests, now});
  if (!before) return;
  const int64_t tokens = *load->generated - before->generated;
  const auto slots = static_cast<int64_t>(options_.slots);
  const int64_t twice = std::min(slots, before->requests) + std::min(slots, load->requests);
  if (tokens <= 0 || twice <= 0) return;
  // Every running request generates a token in each step. This is a mean over many steps.
  const absl::Duration took = (now - before->at) * twice / (2 * tokens);
  usual_step_ = usual_step_ == absl::ZeroDuration() ? took : (usual_step_ + took) / 2;
}

int64_t EngineRank::Shared() const {
  // An engine that reports no usage does not measure it.
  if (!load_ || load_->tokens <= 0) return 0;
  int64_t requests = 0, tokens = 0;
  for (const auto& [number, call] : calls_) {
    if (call.generated == 0 || call.finished || call.whole) continue;
    ++requests;
    tokens += call.prompt_tokens + call.generated;
  }
  // n requests can share at most the KV of n - 1 of them.
  const double times = std::min(static_cast<double>(tokens) / static_cast<double>(load_->tokens),
                                static_cast<double>(requests));
  constexpr double kMost = int64_t{1} << 40;
  return static_cast<int64_t>(std::clamp((times - 1) * static_cast<double>(options_.kv_tokens), 0.0, kMost));
}

}  // namespace bfio::router
