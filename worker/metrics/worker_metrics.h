// A worker's metrics: the figures of its ranks as Prometheus reads them.
//
// Purpose: what only the worker knows, or knows while no router does: its connection, its own cost and
// energy, what it holds for a router to come. One label, the worker's name, tells a process's ranks apart: it
// is stable, while a rank number changes with the epoch. Series grow with the ranks of the process. Pure.
#ifndef BFIO_WORKER_METRICS_WORKER_METRICS_H_
#define BFIO_WORKER_METRICS_WORKER_METRICS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/telemetry/metrics/exposition.h"
#include "worker/metrics/rank_figures.h"

namespace bfio::worker {

// Every metric there is, in the order of docs/metrics.md.
absl::Span<const MetricInfo> WorkerMetrics();

// The exposition of a process with these ranks. `dropped_log_lines`: of common/telemetry/log.h. What is not
// known (a cost, energy without a meter) is left out.
std::string MetricsText(absl::string_view version, uint64_t dropped_log_lines,
                        absl::Span<const RankFigures> ranks);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_METRICS_WORKER_METRICS_H_
