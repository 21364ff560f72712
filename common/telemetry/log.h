// Logging: spdlog set up once per program.
//
// Purpose: one line per event on standard error, text or JSON; use spdlog::info(...) and friends anywhere
// outside router/core. Logging never waits for standard error: a thread of its own writes the lines, and
// drops lines when a stopped reader has filled the queue (log_queue.h). Only spdlog::critical, for the
// reason why a program ends, and flush() wait, for a second at most; so does the end of the process.
// Threads: InitLogging once from main; logging itself from any thread.
#ifndef BFIO_COMMON_TELEMETRY_LOG_H_
#define BFIO_COMMON_TELEMETRY_LOG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace bfio {

// level: trace, debug, info, warning, error. format: "text" or "json". INVALID_ARGUMENT for other values.
absl::Status InitLogging(const std::string& program, const std::string& level, const std::string& format);

// Waits until what was logged is written, for a second at most. Before a program writes to standard error
// itself, so that its lines come in order.
void FlushLog();

// Lines that were dropped since the start, for a program's metrics.
uint64_t DroppedLogLines();

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_LOG_H_
