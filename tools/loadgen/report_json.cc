#include <optional>

#include "absl/strings/str_cat.h"
#include "common/json/json_reader.h"
#include "nlohmann/json.hpp"
#include "tools/loadgen/report.h"

namespace bfio::loadgen {
namespace {

using Json = nlohmann::ordered_json;

// Without samples the values are null: 0 would be taken for a measurement.
Json LatencyJson(const Histogram& h) {
  const auto figure = [&](double value) { return h.count() == 0 ? Json() : Json(value); };
  return {{"p50", figure(h.Quantile(0.5))},
          {"p90", figure(h.Quantile(0.9))},
          {"p99", figure(h.Quantile(0.99))},
          {"p99.9", figure(h.Quantile(0.999))},
          {"max", figure(h.max())},
          {"mean", figure(h.mean())},
          {"count", h.count()}};
}

Json SettingsJson(const Options& o) {
  return {{"target", o.target},
          {"admin", o.admin},
          {"trace", o.trace},
          {"profile", o.profile},
          {"arrival", o.arrival},
          {"rate", o.rate},
          {"burstiness", o.burstiness},
          {"time_scale", o.time_scale},
          {"concurrency", o.concurrency},
          {"requests", o.requests},
          {"duration", o.duration_s},
          {"seed", o.seed},
          {"resume", o.resume},
          {"max_new_tokens", o.max_new_tokens},
          {"ttft_objective_s", absl::ToDoubleSeconds(o.ttft_objective)},
          {"timeout_s", absl::ToDoubleSeconds(o.timeout)}};
}

Json BarrierJson(const BarrierMeasurements& f) {
  Json json = {{"policy", f.policy},
               {"ranks", f.ranks},
               {"steps", f.steps},
               {"idle_fraction", f.idle_fraction},
               {"load_idle_fraction", f.load_idle_fraction},
               {"avg_imbalance_tokens", f.avg_imbalance_tokens},
               {"step_s_mean", f.step_s_mean},
               {"local_s_max_mean", f.local_s_max_mean},
               {"gap_s_mean", f.gap_s_mean},
               {"decide_s_mean", f.decide_s_mean},
               {"late_plans", f.late_plans},
               {"saturated_fraction", f.saturated_fraction},
               {"decisions_stopped_early", f.decisions_stopped_early},
               {"epoch_changed", f.epoch_changed}};
  if (f.energy.has_value()) {
    json["energy_busy_j"] = f.energy->busy_j();
    json["energy_barrier_j"] = f.energy->barrier_j();
    json["energy_parked_j"] = f.energy->parked_j();
  }
  return json;
}

Json OrNull(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json();
}

Json GoodputJson(const Results& r) {
  const GoodputLimits& limits = r.goodput.limits();
  return {{"limits",
           {{"ttft_s", OrNull(limits.ttft_s)},
            {"tpot_s", OrNull(limits.tpot_s)},
            {"e2e_s", OrNull(limits.e2e_s)}}},
          {"good_requests", r.goodput.good()},
          {"share", OrNull(r.good_share())},
          {"requests_per_s", r.good_per_s()},
          {"missed",
           {{"ttft", r.goodput.missed_ttft()},
            {"tpot", r.goodput.missed_tpot()},
            {"e2e", r.goodput.missed_e2e()}}}};
}

}  // namespace

Json ResultJson(const Report& report) {
  const Results& r = report.results;
  Json json = {
      {"requests_sent", r.requests_sent},
      {"completed", r.completed},
      {"failed", Json(r.failed)},
      {"stream_breaches", r.stream_breaches},
      {"retries", r.retries},
      {"resumed", r.resumed},
      {"token_mismatches", r.token_mismatches},
      {"interrupted", r.interrupted},
      {"not_sent", r.not_sent},
      {"prompt_tokens", r.prompt_tokens},
      {"output_tokens", r.output_tokens},
      {"throughput_tokens_per_s", r.tokens_per_s()},
      {"throughput_requests_per_s", r.requests_per_s()},
      {"duration_s", r.duration_s},
      {"ttft_s", LatencyJson(r.ttft_s)},
      {"tpot_s", LatencyJson(r.tpot_s)},
      {"itl_s", LatencyJson(r.itl_s)},
      {"e2e_s", LatencyJson(r.e2e_s)},
      {"schedule_lag_s", LatencyJson(r.schedule_lag_s)},
      {"failed_examples", Json(r.failed_examples)},
      {"breach_examples", r.breach_examples},
      {"started_at", absl::FormatTime(absl::RFC3339_sec, report.started_at, absl::UTCTimeZone())},
      {"version", report.version},
      {"workload",
       {{"source", report.trace.source},
        {"format", report.trace.format},
        {"requests", report.trace.requests.size()},
        {"dropped", report.trace.dropped},
        {"dropped_examples", report.trace.dropped_examples}}},
      {"settings", SettingsJson(report.options)},
  };
  if (report.barrier.has_value()) json["barrier"] = BarrierJson(*report.barrier);
  if (r.goodput.limits().any()) json["goodput"] = GoodputJson(r);
  return json;
}

std::string ToJson(const Report& report) {
  return absl::StrCat(JsonText(ResultJson(report), 2), "\n");
}

}  // namespace bfio::loadgen
