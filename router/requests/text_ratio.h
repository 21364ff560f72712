// How long prompts are in tokens, where the router sees only their text: an edge of engines counts, an edge
// of clients asks. A router has one model. Ownership: shared by both. Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "common/base/mutex.h"

namespace bfio::router {

// Bytes of text per token, as engines count: the median of the last samples.
class TextRatio {
 public:
  // For European languages, until there is a sample; bounds of any tokenizer.
  static constexpr double kUsual = 4, kLeast = 1, kMost = 8;
  static constexpr size_t kSamples = 9;

  double bytes_per_token() const { return ratio_.load(std::memory_order_relaxed); }
  void Add(double sample);

 private:
  Mutex mutex_;
  std::deque<double> samples_ ABSL_GUARDED_BY(mutex_);
  std::atomic<double> ratio_ = kUsual;
};

// The prompts of one server: their texts as they were placed, their tokens as the server counts them. A
// sample is the mean of kPrompts texts by the mean of the prompts counted meanwhile; none if those are not as
// many, because others have sent some.
class PromptCount {
 public:
  static constexpr int64_t kPrompts = 64;

  explicit PromptCount(std::shared_ptr<TextRatio> ratio) : ratio_(std::move(ratio)) {}
  // A request has ended; 0 bytes: it has no text.
  void OnEnd(int64_t text_bytes);
  // The server's count of requests that have ended, and of the tokens of their prompts.
  void OnCount(double prompts, double tokens);

 private:
  const std::shared_ptr<TextRatio> ratio_;
  Mutex mutex_;
  // Since the last sample.
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0, bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // The server's count then; -1: none.
  double prompts_ ABSL_GUARDED_BY(mutex_) = -1, tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bfio::router
