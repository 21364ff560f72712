// W3C trace context, as far as a program needs it that makes no spans of its own.
//
// Purpose: validates a traceparent before it is passed on, and extracts its trace in
// log lines (https://www.w3.org/TR/trace-context/, version 00; later versions may append fields). Pure; any
// thread.
#ifndef BFIO_COMMON_TELEMETRY_TRACE_CONTEXT_H_
#define BFIO_COMMON_TELEMETRY_TRACE_CONTEXT_H_

#include "absl/strings/string_view.h"

namespace bfio {

// The 32 digits of the trace id; empty where `traceparent` is not one: wrong length or digits, a version of
// ff, ids of zeros. What is not one is to be ignored, not refused.
absl::string_view TraceIdOf(absl::string_view traceparent);

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_TRACE_CONTEXT_H_
