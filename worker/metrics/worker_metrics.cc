#include "worker/metrics/worker_metrics.h"

#include <optional>
#include <vector>

namespace bfio::worker {
namespace {

using enum MetricKind;
using Value = std::optional<double>;

struct RankMetric {
  MetricInfo info;
  // Absent: this rank has no value.
  Value (*value)(const RankTelemetry&);
};

Value CostOf(const RankTelemetry& rank, std::optional<FittedValue> StepCostEstimate::*part) {
  const auto& value = rank.cost.*part;
  return value ? Value(value->value) : std::nullopt;
}

constexpr MetricInfo kDroppedLines = {"bfio:worker_log_lines_dropped_total", kCounter, "",
                                      "log lines dropped because standard error was not read in time"};
constexpr MetricInfo kBuildInfo = {"bfio:worker_build_info", kGauge, "version",
                                   "1; the label is the worker's version"};

const std::vector<RankMetric>& RankMetrics() {
  static const auto* const metrics = new std::vector<RankMetric>{
      {{"bfio:worker_connected", kGauge, "worker", "1 while a stream to the router is open"},
       [](const RankTelemetry& r) -> Value { return r.connected; }},
      {{"bfio:worker_serving", kGauge, "worker",
        "1 while the worker is in an epoch, decoding or waiting for requests"},
       [](const RankTelemetry& r) -> Value { return r.in_epoch; }},
      {{"bfio:worker_epochs_failed_total", kCounter, "worker", "epochs whose barrier did not form"},
       [](const RankTelemetry& r) -> Value { return double(r.epochs_failed); }},
      {{"bfio:worker_steps_total", kCounter, "worker", "completed steps"},
       [](const RankTelemetry& r) -> Value { return double(r.steps); }},
      {{"bfio:worker_preempted_requests_total", kCounter, "worker", "requests preempted because KV ran out"},
       [](const RankTelemetry& r) -> Value { return double(r.preempted_requests); }},
      {{"bfio:worker_failed_requests_total", kCounter, "worker",
        "requests ended because their logits were not finite"},
       [](const RankTelemetry& r) -> Value { return double(r.failed_requests); }},
      {{"bfio:worker_kv_capacity_tokens", kGauge, "worker", "capacity in KV tokens (--kv_tokens)"},
       [](const RankTelemetry& r) -> Value { return double(r.kv_tokens); }},
      {{"bfio:worker_kv_reserved_tokens", kGauge, "worker", "KV tokens reserved for running requests"},
       [](const RankTelemetry& r) -> Value { return double(r.kv_tokens - r.free_kv_tokens); }},
      {{"bfio:worker_undelivered_tokens", kGauge, "worker",
        "tokens generated without a router and not reported yet; those of resumable requests are kept"},
       [](const RankTelemetry& r) -> Value { return double(r.undelivered_tokens); }},
      {{"bfio:worker_held_requests", kGauge, "worker", "resumable requests kept for the next router"},
       [](const RankTelemetry& r) -> Value { return double(r.held_requests); }},
      {{"bfio:worker_step_cost_fixed_seconds", kGauge, "worker",
        "fitted fixed cost of a step, C; absent until the fit is certain"},
       [](const RankTelemetry& r) { return CostOf(r, &StepCostEstimate::c); }},
      {{"bfio:worker_step_cost_token_seconds", kGauge, "worker",
        "fitted cost of a resident token in a step, t_l; absent until the fit is certain"},
       [](const RankTelemetry& r) { return CostOf(r, &StepCostEstimate::tl); }},
      {{"bfio:worker_energy_barrier_joules_total", kCounter, "worker",
        "energy of the rank's device while it waited within steps; absent without --energy_device"},
       [](const RankTelemetry& r) -> Value { return r.barrier_j; }},
  };
  return *metrics;
}

}  // namespace

absl::string_view NameOf(RankPhase phase) {
  switch (phase) {
    case RankPhase::kStarting: return "starting";
    case RankPhase::kConnecting: return "connecting";
    case RankPhase::kJoined: return "joined";
    case RankPhase::kServing: return "serving";
    case RankPhase::kLeaving: return "leaving";
  }
  return "";
}

absl::Span<const MetricInfo> WorkerMetrics() {
  static const auto* const all = [] {
    auto* infos = new std::vector<MetricInfo>{kBuildInfo, kDroppedLines};
    for (const auto& metric : RankMetrics()) infos->push_back(metric.info);
    return infos;
  }();
  return *all;
}

std::string MetricsText(absl::string_view version, uint64_t dropped_log_lines,
                        absl::Span<const RankTelemetry> ranks) {
  Exposition out;
  out.Add(kBuildInfo, 1, version);
  out.Add(kDroppedLines, static_cast<double>(dropped_log_lines));
  for (const auto& metric : RankMetrics()) {
    for (const RankTelemetry& rank : ranks) {
      if (const Value value = metric.value(rank)) out.Add(metric.info, *value, rank.worker_id);
    }
  }
  return out.Text();
}

}  // namespace bfio::worker
