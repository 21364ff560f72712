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
struct DistributionMetric {
  MetricInfo info;
  const Distribution& (*value)(const RankTelemetry&);
};

Value Of(const std::optional<FittedValue>& fitted) {
  return fitted.has_value() ? Value(fitted->value) : std::nullopt;
}
Value CostOf(const RankTelemetry& rank, std::optional<FittedValue> StepCostEstimate::*part) {
  return rank.cost.has_value() ? Of((*rank.cost).*part) : std::nullopt;
}
Value EnergyOf(const RankTelemetry& rank, double EnergySums::*part) {
  return rank.energy.has_value() ? Value(rank.energy->sums.*part) : std::nullopt;
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
       [](const RankTelemetry& r) -> Value { return r.epoch != 0; }},
      {{"bfio:worker_rank", kGauge, "worker", "rank in the current epoch; absent without an epoch"},
       [](const RankTelemetry& r) -> Value { return r.rank; }},
      {{"bfio:worker_epoch", kGauge, "worker", "number of the current epoch; 0 without an epoch"},
       [](const RankTelemetry& r) -> Value { return double(r.epoch); }},
      {{"bfio:worker_epochs_total", kCounter, "worker", "epochs whose barrier formed"},
       [](const RankTelemetry& r) -> Value { return double(r.epochs_formed); }},
      {{"bfio:worker_epochs_failed_total", kCounter, "worker", "epochs whose barrier did not form"},
       [](const RankTelemetry& r) -> Value { return double(r.epochs_failed); }},
      {{"bfio:worker_reconnects_total", kCounter, "worker", "streams to the router after the first"},
       [](const RankTelemetry& r) -> Value { return double(r.reconnects); }},
      {{"bfio:worker_reports_sent_total", kCounter, "worker", "step reports written to the router"},
       [](const RankTelemetry& r) -> Value { return double(r.reports_sent); }},
      {{"bfio:worker_unsent_messages", kGauge, "worker", "messages waiting to be written to the router"},
       [](const RankTelemetry& r) -> Value { return double(r.unsent_messages); }},
      {{"bfio:worker_steps_total", kCounter, "worker", "completed steps"},
       [](const RankTelemetry& r) -> Value { return double(r.steps); }},
      {{"bfio:worker_generation_tokens_total", kCounter, "worker", "tokens generated"},
       [](const RankTelemetry& r) -> Value { return double(r.generated_tokens); }},
      {{"bfio:worker_prefill_tokens_total", kCounter, "worker", "prompt tokens processed"},
       [](const RankTelemetry& r) -> Value { return double(r.prefill_tokens); }},
      {{"bfio:worker_finished_requests_total", kCounter, "worker", "requests whose last token was generated"},
       [](const RankTelemetry& r) -> Value { return double(r.finished_requests); }},
      {{"bfio:worker_preempted_requests_total", kCounter, "worker", "requests preempted because KV ran out"},
       [](const RankTelemetry& r) -> Value { return double(r.preempted_requests); }},
      {{"bfio:worker_failed_requests_total", kCounter, "worker",
        "requests ended because their logits were not finite"},
       [](const RankTelemetry& r) -> Value { return double(r.failed_requests); }},
      {{"bfio:worker_slots", kGauge, "worker", "maximum concurrent requests (--slots)"},
       [](const RankTelemetry& r) -> Value { return double(r.slots); }},
      {{"bfio:worker_requests_running", kGauge, "worker", "requests in slots after the last step"},
       [](const RankTelemetry& r) -> Value { return double(r.active_requests); }},
      {{"bfio:worker_requests_waiting", kGauge, "worker", "requests in plans whose step has not started"},
       [](const RankTelemetry& r) -> Value { return double(r.waiting_requests); }},
      {{"bfio:worker_load_tokens", kGauge, "worker", "load of the last step: resident KV tokens"},
       [](const RankTelemetry& r) -> Value { return double(r.load_tokens); }},
      {{"bfio:worker_kv_capacity_tokens", kGauge, "worker", "capacity in KV tokens (--kv_tokens)"},
       [](const RankTelemetry& r) -> Value { return double(r.kv_tokens); }},
      {{"bfio:worker_kv_reserved_tokens", kGauge, "worker", "KV tokens reserved for running requests"},
       [](const RankTelemetry& r) -> Value { return double(r.kv_tokens - r.free_kv_tokens); }},
      {{"bfio:worker_undelivered_tokens", kGauge, "worker",
        "tokens generated without a router and not reported yet; those of resumable requests are kept"},
       [](const RankTelemetry& r) -> Value { return double(r.undelivered_tokens); }},
      {{"bfio:worker_held_requests", kGauge, "worker", "resumable requests kept for the next router"},
       [](const RankTelemetry& r) -> Value { return double(r.held_requests); }},
      {{"bfio:worker_held_bytes", kGauge, "worker",
        "bytes reserved for held requests, at most 64 MiB per rank"},
       [](const RankTelemetry& r) -> Value { return double(r.held_bytes); }},
      {{"bfio:worker_step_cost_fixed_seconds", kGauge, "worker",
        "fitted fixed cost of a step, C; absent until the fit is certain"},
       [](const RankTelemetry& r) { return CostOf(r, &StepCostEstimate::c); }},
      {{"bfio:worker_step_cost_token_seconds", kGauge, "worker",
        "fitted cost of a resident token in a step, t_l; absent until the fit is certain"},
       [](const RankTelemetry& r) { return CostOf(r, &StepCostEstimate::tl); }},
      {{"bfio:worker_step_cost_prefill_token_seconds", kGauge, "worker",
        "fitted cost of a prompt token; absent until the fit is certain"},
       [](const RankTelemetry& r) { return CostOf(r, &StepCostEstimate::prefill); }},
      {{"bfio:worker_step_cost_residual_seconds", kGauge, "worker",
        "robust standard deviation of a step's local time around the fit"},
       [](const RankTelemetry& r) -> Value { return r.cost ? Value(r.cost->residual_s) : std::nullopt; }},
      {{"bfio:worker_energy_busy_joules_total", kCounter, "worker",
        "energy of the rank's device while it computed; absent without --energy_device"},
       [](const RankTelemetry& r) { return EnergyOf(r, &EnergySums::busy_j); }},
      {{"bfio:worker_energy_barrier_joules_total", kCounter, "worker",
        "energy of the rank's device while it waited within steps; absent without --energy_device"},
       [](const RankTelemetry& r) { return EnergyOf(r, &EnergySums::barrier_j); }},
      {{"bfio:worker_energy_parked_joules_total", kCounter, "worker",
        "energy of the rank's device outside of steps; absent without --energy_device"},
       [](const RankTelemetry& r) { return EnergyOf(r, &EnergySums::parked_j); }},
      {{"bfio:worker_power_watts", kGauge, "worker",
        "mean power of the rank's device over the meter's last window; absent without --energy_device"},
       [](const RankTelemetry& r) -> Value { return r.energy ? Value(r.energy->watts) : std::nullopt; }},
      {{"bfio:worker_idle_power_watts", kGauge, "worker",
        "idle power of the rank's device; absent until measured"},
       [](const RankTelemetry& r) -> Value { return r.energy ? r.energy->idle_watts : std::nullopt; }},
  };
  return *metrics;
}

const std::vector<DistributionMetric>& DistributionMetrics() {
  static const auto* const metrics = new std::vector<DistributionMetric>{
      {{"bfio:worker_step_local_seconds", kHistogram, "worker", "time of a step's local work"},
       [](const RankTelemetry& r) -> const Distribution& { return r.local_s; }},
      {{"bfio:worker_step_barrier_wait_seconds", kHistogram, "worker", "time of waiting at a step's barrier"},
       [](const RankTelemetry& r) -> const Distribution& { return r.barrier_wait_s; }},
      {{"bfio:worker_step_gap_seconds", kHistogram, "worker",
        "time between a step's barrier and the local work of the next step"},
       [](const RankTelemetry& r) -> const Distribution& { return r.gap_s; }},
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
    for (const auto& metric : DistributionMetrics()) infos->push_back(metric.info);
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
  for (const auto& metric : DistributionMetrics()) {
    for (const RankTelemetry& rank : ranks) {
      const Distribution& d = metric.value(rank);
      out.AddHistogram(metric.info, {d.bounds(), d.counts(), d.sum()}, rank.worker_id);
    }
  }
  return out.Text();
}

}  // namespace bfio::worker
