// The router's metrics: a ClusterState in the Prometheus text format. The admin API and /metrics report the
// same values, because /metrics is made from the state. The decision thread fills a state on request and
// keeps nothing for this. Names follow the dashboards of vLLM, under the prefix "bfio:"; metrics of the
// barrier exist only here. The number of series grows with the ranks (at most a dozen each) and the first 64
// tenants. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "bfio/v1/admin.pb.h"
#include "common/telemetry/metrics/exposition.h"

namespace bfio::router {

// All metrics, in the order of the page.
absl::Span<const MetricInfo> RouterMetrics();

// The exposition of `state`, without values that the state lacks (a distribution, energy without a meter).
std::string MetricsText(const v1::ClusterState& state);

// The exposition of a standby router, which has only some of the metrics.
std::string StandbyMetricsText(absl::string_view version, double uptime_s);

}  // namespace bfio::router
