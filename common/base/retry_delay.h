// The delay before a retry, as a payload of an absl::Status. A refusal carries the delay without a wire type;
// the edges convert it (common/net/status.h). Pure functions; any thread.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace bfio {

// Nanosecond precision. REQUIRES: !status.ok(), delay >= 0.
void SetRetryDelay(absl::Status& status, absl::Duration delay);

// Absent when no delay was set.
std::optional<absl::Duration> GetRetryDelay(const absl::Status& status);

}  // namespace bfio
