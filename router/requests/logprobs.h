// Log-probabilities of a request's tokens. The form in which they pass from the worker's report to the
// client's stream. Consecutive tokens, packed; every token of a request has equally many alternatives
// (Sampling::logprobs). Natural logarithms. Plain data. Threads: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace bfio::router {

// One of the most likely tokens at the position of a generated one.
struct TopToken {
  uint32_t id = 0;
  float logprob = 0;
  friend bool operator==(const TopToken&, const TopToken&) = default;
};

// Borrowed. Empty for requests without log-probabilities.
struct LogprobsView {
  // By token.
  absl::Span<const float> tokens;
  // `width()` per token, the most likely first.
  absl::Span<const TopToken> top;

  bool empty() const { return tokens.empty(); }
  size_t width() const { return tokens.empty() ? 0 : top.size() / tokens.size(); }
  // The log-probabilities of at most `count` tokens, from token `first` on.
  LogprobsView subspan(size_t first, size_t count = absl::Span<const float>::npos) const {
    if (empty()) return {};
    first = std::min(first, tokens.size());
    count = std::min(count, tokens.size() - first);
    return {tokens.subspan(first, count), top.subspan(first * width(), count * width())};
  }
  // Memory that they take, in multiples of a token id's size.
  int64_t words() const { return static_cast<int64_t>(tokens.size() + 2 * top.size()); }
};

struct Logprobs {
  std::vector<float> tokens;
  std::vector<TopToken> top;

  LogprobsView view() const { return {tokens, top}; }
  bool empty() const { return tokens.empty(); }
  // REQUIRES: `more` has as many alternatives per token as this.
  void Append(const LogprobsView& more) {
    tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
    top.insert(top.end(), more.top.begin(), more.top.end());
  }
  // Keeps the allocated memory.
  void Clear() {
    tokens.clear();
    top.clear();
  }
};

}  // namespace bfio::router
