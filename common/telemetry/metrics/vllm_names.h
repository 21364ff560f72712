// What a process serves, under the names of vLLM's metrics.
//
// Purpose: dashboards, autoscalers and the Gateway API inference extension read a few metrics by the names
// that vLLM has given them. Router and worker expose these beside their own. Pure functions; any thread.
#ifndef BFIO_COMMON_TELEMETRY_METRICS_VLLM_NAMES_H_
#define BFIO_COMMON_TELEMETRY_METRICS_VLLM_NAMES_H_

#include <string>

#include "absl/types/span.h"
#include "common/telemetry/metrics/exposition.h"

namespace bfio {

// Sums over the ranks of the process.
struct ServedLoad {
  // As clients name the model.
  std::string model_name;
  // Requests.
  double running = 0;
  double waiting = 0;
  // KV tokens.
  double kv_used = 0;
  double kv_capacity = 0;
};

// In the order of docs/metrics.md.
absl::Span<const MetricInfo> VllmMetrics();
void AddVllmMetrics(const ServedLoad& load, Exposition& out);

}  // namespace bfio

#endif  // BFIO_COMMON_TELEMETRY_METRICS_VLLM_NAMES_H_
