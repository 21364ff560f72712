// When a retry makes sense, as a payload of an absl::Status.
//
// Purpose: a refusal carries the delay before a retry, without a wire type; the edges translate
// it (common/net/status.h). Pure; any thread.
#ifndef BFIO_COMMON_BASE_RETRY_DELAY_H_
#define BFIO_COMMON_BASE_RETRY_DELAY_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace bfio {

// To the nanosecond. REQUIRES: !status.ok(), delay >= 0.
void SetRetryDelay(absl::Status& status, absl::Duration delay);

// Nothing where none was set.
std::optional<absl::Duration> GetRetryDelay(const absl::Status& status);

}  // namespace bfio

#endif  // BFIO_COMMON_BASE_RETRY_DELAY_H_
