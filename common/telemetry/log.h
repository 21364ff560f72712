// Logging: spdlog set up once per program.
//
// Purpose: one line per event on standard error, text or JSON; use spdlog::info(...) and friends anywhere
// outside router/core. Threads: InitLogging once from main; logging itself from any thread.
#ifndef BFIO_COMMON_TELEMETRY_LOG_H_
#define BFIO_COMMON_TELEMETRY_LOG_H_

#include <string>

#include "absl/status/status.h"

namespace bfio {

// level: trace, debug, info, warning, error. format: "text" or "json". INVALID_ARGUMENT for other values.
absl::Status InitLogging(const std::string& program, const std::string& level, const std::string& format);

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_LOG_H_
