// Logging: spdlog set up once per program. One line per event on standard error, as text or JSON. Use
// spdlog::info(...) and the like anywhere outside router/core. Logging does not block on standard error: a
// dedicated thread writes the lines, and lines are dropped when a stopped reader has filled the queue
// (log_queue.h). Only spdlog::critical (the reason why a program ends), flush() and the end of the process
// wait for the writes, for at most a second. Threads: InitLogging once from main; logging from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace bfio {

// `level`: trace, debug, info, warning, error. `format`: "text" or "json". INVALID_ARGUMENT for other values.
absl::Status InitLogging(const std::string& program, const std::string& level, const std::string& format);

// Waits for at most a second until the logged lines are written. For use before a program writes to standard
// error itself, so that its lines are in order.
void FlushLog();

// Lines dropped since the start, for a program's metrics.
uint64_t DroppedLogLines();

}  // namespace bfio
