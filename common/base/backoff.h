// Growing pauses before something that failed is tried again. The bound doubles from try to try, and a pause
// is random between 0 and the bound ("full jitter"), so that those that failed together do not return
// together. Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/base/rng.h"

namespace bfio {

class Backoff {
 public:
  // The first and the last bound.
  Backoff(absl::Duration first, absl::Duration last, uint64_t seed)
      : first_(first), last_(last), rng_(seed) {}

  // `told`: what the server asked for (GetRetryDelay); the pause is then between this and 1.5 times this.
  absl::Duration Next(std::optional<absl::Duration> told = std::nullopt) {
    if (told.has_value()) return *told * (1 + rng_.Uniform() / 2);
    bound_ = std::clamp(2 * bound_, first_, last_);
    return bound_ * rng_.Uniform();
  }
  // Call after success: the next pause starts at the first bound.
  void Reset() { bound_ = absl::ZeroDuration(); }

 private:
  absl::Duration first_, last_, bound_;
  Rng rng_;
};

}  // namespace bfio
