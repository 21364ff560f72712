// W3C trace context, for programs that create no spans of their own. Validates a traceparent before it is
// passed on, and extracts its trace id for log lines (https://www.w3.org/TR/trace-context/, version 00; later
// versions may append fields). Pure functions; any thread.
#pragma once

#include "absl/strings/string_view.h"

namespace bfio {

// The 32 digits of the trace id. Empty if `traceparent` is invalid: wrong length or digits, version ff, ids
// of zeros. An invalid one should be ignored, not rejected.
absl::string_view TraceIdOf(absl::string_view traceparent);

}  // namespace bfio
