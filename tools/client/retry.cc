#include "tools/client/retry.h"

#include <algorithm>

#include "common/net/status.h"

namespace bfio::client {

absl::Duration Backoff::Next(std::optional<absl::Duration> told) {
  if (told.has_value()) return *told * (1 + rng_.Uniform() / 2);
  bound_ = std::clamp(2 * bound_, options_.first_pause, options_.last_pause);
  return bound_ * rng_.Uniform();
}

bool MayComeAgain(const absl::Status& status) {
  return absl::IsUnavailable(status) ||
         (absl::IsResourceExhausted(status) && GetRetryDelay(status).has_value());
}

}  // namespace bfio::client
