#include "router/requests/text_ratio.h"

#include <algorithm>
#include <vector>

namespace bfio::router {

void TextRatio::Add(double sample) {
  MutexLock lock(&mutex_);
  samples_.push_back(std::clamp(sample, kLeast, kMost));
  if (samples_.size() > kSamples) samples_.pop_front();
  std::vector<double> sorted(samples_.begin(), samples_.end());
  std::sort(sorted.begin(), sorted.end());
  ratio_.store(sorted[sorted.size() / 2], std::memory_order_relaxed);
}

void PromptCount::OnEnd(int64_t text_bytes) {
  if (text_bytes <= 0) return;
  MutexLock lock(&mutex_);
  ++ended_;
  bytes_ += text_bytes;
}

void PromptCount::OnCount(double prompts, double tokens) {
  MutexLock lock(&mutex_);
  // It counts anew after a restart.
  const bool counts_on = prompts_ >= 0 && prompts >= prompts_ && tokens >= tokens_;
  if (counts_on && ended_ < kPrompts) return;
  const auto ended = static_cast<double>(ended_);
  const double counted = prompts - prompts_, mean = (tokens - tokens_) / counted;
  const bool lags = 1.25 * counted < ended;
  if (counts_on && lags && ended_ < 4 * kPrompts) return;
  if (counts_on && !lags && counted <= 1.25 * ended && mean > 0)
    ratio_->Add(static_cast<double>(bytes_) / ended / mean);
  prompts_ = prompts;
  tokens_ = tokens;
  ended_ = bytes_ = 0;
}

}  // namespace bfio::router
