#include "common/telemetry/metrics/vllm_names.h"

namespace bfio {
namespace {

constexpr MetricInfo kVllm[] = {
    {"vllm:num_requests_running", MetricKind::kGauge, "model_name",
     "requests that hold a slot, under the name that vLLM's dashboards and autoscalers read"},
    {"vllm:num_requests_waiting", MetricKind::kGauge, "model_name", "requests that wait for a slot"},
    {"vllm:kv_cache_usage_perc", MetricKind::kGauge, "model_name",
     "share of the KV tokens of all ranks in use, 0 to 1"}};

}  // namespace

absl::Span<const MetricInfo> VllmMetrics() {
  return kVllm;
}

void AddVllmMetrics(const ServedLoad& load, Exposition& out) {
  out.Add(kVllm[0], load.running, load.model_name);
  out.Add(kVllm[1], load.waiting, load.model_name);
  out.Add(kVllm[2], load.kv_capacity > 0 ? load.kv_used / load.kv_capacity : 0, load.model_name);
}

}  // namespace bfio
