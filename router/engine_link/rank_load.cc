#include "router/engine_link/rank_load.h"

#include "router/core/model/kv_capacity.h"

namespace bfio::router {

ReportedLoad::ReportedLoad(int64_t most_others, int64_t kv_tokens, std::optional<EngineLoad> running)
    : most_others_(most_others), kv_tokens_(kv_tokens), load_(running) {
  if (!load_) return;
  others_ = std::clamp<int64_t>(load_->requests, 0, most_others_);
  last_others_ = others_;
}

void ReportedLoad::Take(std::optional<EngineLoad> load, const Own& own, absl::Time now) {
  works_ = load && load_ && (load->tokens != load_->tokens || load->generated != load_->generated);
  // The first report may be older than the most recent requests.
  if (load && (!load_ || load->requests >= own.requests)) complete_at_ = now;
  load_ = load;
  if (now - window_since_ >= kWindow) {
    window_since_ = now;
    recent_others_.BeginWindow();
    recent_shared_.BeginWindow();
  }
  const int64_t others = load_ ? load_->requests - own.requests : 0;
  const int64_t bounded = std::clamp<int64_t>(others, 0, most_others_);
  others_ =
      last_others_ ? std::max(bounded, *std::exchange(last_others_, bounded)) : recent_others_.Take(bounded);
  shared_ = recent_shared_.Take(
      load_ ? core::SharedKvTokens(own.decoding, own.decoding_tokens, load_->tokens, kv_tokens_) : 0);
}

}  // namespace bfio::router
