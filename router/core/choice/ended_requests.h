// The requests that ended last. A bounded record from which requests similar to the present ones are drawn.
// Taken in the order of their ends, long and short requests are as frequent as among arrivals. Ownership:
// plain data. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "router/core/lookahead/lookahead.h"

namespace bfio::core {

struct EndedRequest {
  // As it was placed, with the client's max_new_tokens and prediction.
  Resident resident;
  // Tokens generated on that worker, at least 1.
  int64_t output_tokens = 1;
};

class EndedRequests {
 public:
  // Number of requests kept: as many as the survival model weighs (LookaheadOptions::memory_requests).
  static constexpr size_t kMost = 4096;

  void Add(const Resident& resident, int64_t output_tokens) {
    if (ring_.size() < kMost) {
      ring_.push_back({resident, output_tokens});
    } else {
      Count(ring_[next_].output_tokens, -1);
      ring_[next_] = {resident, output_tokens};
      next_ = (next_ + 1) % kMost;
    }
    Count(output_tokens, 1);
  }
  size_t size() const { return ring_.size(); }
  const EndedRequest& operator[](size_t i) const { return ring_[i]; }
  // The request that ended `before` requests before the last one. REQUIRES: before < size().
  const EndedRequest& Last(size_t before) const {
    return ring_[(next_ + 2 * ring_.size() - 1 - before) % ring_.size()];
  }
  // Number of steps that a resident stays in all: the mean over residents, not over requests, because long
  // requests are residents for longer. 0 while no request has ended.
  double mean_stay() const { return sum_ > 0 ? squares_ / sum_ : 0; }

 private:
  void Count(int64_t output_tokens, double sign) {
    const auto tokens = static_cast<double>(output_tokens);
    sum_ += sign * tokens;
    squares_ += sign * tokens * tokens;
  }

  std::vector<EndedRequest> ring_;
  // Index of the oldest entry, once the ring is full.
  size_t next_ = 0;
  // Sums over the ring of outputs and of their squares. Whole numbers, so no rounding accumulates.
  double sum_ = 0;
  double squares_ = 0;
};

}  // namespace bfio::core
