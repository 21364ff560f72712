#include "common/telemetry/trace_context.h"

#include <algorithm>

namespace bfio {
namespace {

// version "-" trace-id "-" parent-id "-" flags
constexpr size_t kTraceId = 3, kParentId = 36, kFlags = 53, kLength = 55;
constexpr size_t kLongest = 512;

bool IsHex(absl::string_view digits) {
  return std::all_of(digits.begin(), digits.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(absl::string_view digits) {
  return IsHex(digits) && digits.find_first_not_of('0') != absl::string_view::npos;
}

}  // namespace

absl::string_view TraceIdOf(absl::string_view traceparent) {
  if (traceparent.size() < kLength || traceparent.size() > kLongest) return "";
  const absl::string_view version = traceparent.substr(0, 2);
  if (!IsHex(version) || version == "ff") return "";
  if (traceparent.size() > kLength && (version == "00" || traceparent[kLength] != '-')) return "";
  for (const size_t dash : {kTraceId, kParentId, kFlags}) {
    if (traceparent[dash - 1] != '-') return "";
  }
  const absl::string_view trace = traceparent.substr(kTraceId, 32),
                          parent = traceparent.substr(kParentId, 16);
  if (!IsId(trace) || !IsId(parent) || !IsHex(traceparent.substr(kFlags, 2))) return "";
  // Fields that later versions append are passed on, and must not break a header or a log line.
  const bool printable =
      std::all_of(traceparent.begin(), traceparent.end(), [](char c) { return c > 32 && c < 127; });
  return printable ? trace : "";
}

}  // namespace bfio
