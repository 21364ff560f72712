// A token bucket that fills at `rate` per second up to `depth`; its level may be negative. Plain data.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace bfio {

class TokenBucket {
 public:
  TokenBucket(double rate, double depth, absl::Time now)
      : rate_(rate), depth_(depth), level_(depth), at_(now) {}

  // How long until `amount` may be taken; 0: now.
  absl::Duration Wait(double amount, absl::Time now) {
    if (rate_ <= 0) return absl::ZeroDuration();
    if (now > at_) {
      level_ = std::min(depth_, level_ + rate_ * absl::ToDoubleSeconds(now - at_));
      at_ = now;
    }
    // A full bucket permits an amount that is larger than its depth.
    const double missing = std::min(amount, depth_) - level_;
    if (missing <= 1e-9 * depth_) return absl::ZeroDuration();
    return absl::Seconds(missing / rate_);
  }
  // REQUIRES: Wait is 0.
  void Take(double amount) { level_ -= amount; }
  void GiveBack(double amount) { level_ = level_ + amount < depth_ ? level_ + amount : depth_; }
  bool Full(absl::Time now) { return Wait(depth_, now) == absl::ZeroDuration(); }

 private:
  double rate_, depth_, level_;
  absl::Time at_;
};

}  // namespace bfio
