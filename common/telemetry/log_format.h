// The format of a log line; independent of spdlog, so that tests can check it. Both formats are exactly one
// line: control characters of a message are escaped (`\n`, `\x1b`), in JSON also quotes and backslashes. A
// message is truncated after kMaxMessageBytes, with a mark, because messages may contain text from peers.
// Times are UTC with microseconds. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/telemetry/log_fields.h"

namespace bfio {

inline constexpr size_t kMaxMessageBytes = 8192;

struct LogLine {
  absl::Time time;
  absl::string_view level;
  absl::string_view program;
  uint64_t thread = 0;
  absl::string_view message;
  // Used only in JSON.
  absl::Span<const LogField> fields = {};
};

// "2024-05-01T12:00:00.000000Z info bfio_router: message"
std::string TextLine(const LogLine& line);

// {"time":"...","level":"info","program":"bfio_router","thread":7,"message":"...","request_id":"a","epoch":3}
std::string JsonLine(const LogLine& line);

}  // namespace bfio
