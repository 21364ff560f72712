// The router's metrics: a ClusterState as Prometheus reads it.
//
// Purpose: the admin API and /metrics tell the same figures, for one is made from the other; the decision
// thread fills a state when it is asked and keeps nothing for this. Names follow what dashboards of vLLM
// know, under the prefix "bfio:"; what is about the barrier no other server has. Series grow with the ranks
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

// The exposition of `state`. What a state does not say (a distribution it lacks, energy without a meter) is
// left out.
std::string MetricsText(const v1::ClusterState& state);

// Of a router that stands by: those of them that it has.
std::string StandbyMetricsText(absl::string_view version, double uptime_s);

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_STATE_METRICS_H_
