// The router's metrics: a ClusterState as Prometheus reads it.
//
// Purpose: the admin API and /metrics report the same values, because one is made from the other. The
// decision thread fills a state on request and keeps nothing for this. Names follow the dashboards of vLLM,
// under the prefix "bfio:"; metrics of the barrier exist only here. Series grow with the ranks
// (at most a dozen each) and the first 64 tenants. Pure.
#ifndef BFIO_ROUTER_ADMIN_STATE_METRICS_H_
#define BFIO_ROUTER_ADMIN_STATE_METRICS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "bfio/v1/admin.pb.h"
#include "common/telemetry/metrics/exposition.h"

namespace bfio::router {

// Every metric there is, in the order of the page.
absl::Span<const MetricInfo> RouterMetrics();

// The exposition of `state`. Values that a state lacks (a distribution, energy without a meter) are
// left out.
std::string MetricsText(const v1::ClusterState& state);

// Of a standby router: those that it has.
std::string StandbyMetricsText(absl::string_view version, double uptime_s);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_STATE_METRICS_H_
