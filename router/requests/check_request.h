// Checks a request against the router's limits, independent of its protocol. Every edge that makes a
// ClientRequest calls this, so every request behind an edge is in range. Errors that only a wire message can
// have (a malformed duration, a missing prompt) are checked by its edge. Pure; any thread.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/requests/limits.h"
#include "router/requests/request.h"

namespace bfio::router {

// A resume of a live request, which omits the prompt and its settings.
inline bool IsBareResume(const ClientRequest& request) {
  return request.resume_from.has_value() && !request.has_prompt();
}

// INVALID_ARGUMENT if the objective is not above 0 and at most an hour.
absl::Status CheckObjective(absl::string_view field, const std::optional<absl::Duration>& objective);

// The header with the objective for the first token in milliseconds, as in llm-d, where a protocol has no
// field for it. INVALID_ARGUMENT: its text is no number of milliseconds within the bounds.
inline constexpr char kTtftHeader[] = "x-slo-ttft-ms";
absl::StatusOr<absl::Duration> TtftObjectiveOf(absl::string_view text);

// INVALID_ARGUMENT naming field, value and limit.
absl::Status CheckRequest(const ClientRequest& request, const RequestLimits& limits);

}  // namespace bfio::router
