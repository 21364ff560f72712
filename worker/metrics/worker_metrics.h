// A worker's metrics: the measurements of its ranks for Prometheus. Values that only the worker has: its
// connection, its own cost and energy, and what it holds for the next router. One label, the worker's name,
// identifies the ranks of a process: it is stable, while a rank number changes with the epoch. The number of
// series grows with the ranks of the process. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/telemetry/metrics/exposition.h"
#include "worker/metrics/rank_telemetry.h"

namespace bfio::worker {

// All metrics, in the order of docs/reference/metrics.md.
absl::Span<const MetricInfo> WorkerMetrics();

// The Prometheus text of a process with these ranks. `dropped_log_lines`: as counted by
// common/telemetry/log.h. Values that do not exist (a cost, energy without a meter) are left out.
std::string MetricsText(absl::string_view version, uint64_t dropped_log_lines,
                        absl::Span<const RankTelemetry> ranks);

}  // namespace bfio::worker
