#include "tools/loadgen/report.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace bfio::loadgen {
namespace {

using Json = nlohmann::ordered_json;

// Without samples the figures are null: 0 would claim something.
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
          {"connections", o.connections},
          {"max_in_flight", o.max_in_flight},
          {"max_retries", o.max_retries},
          {"resume", o.resume},
          {"timeout_s", absl::ToDoubleSeconds(o.timeout)}};
}

Json BarrierJson(const BarrierFigures& f) {
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
    json["energy_busy_j"] = f.energy->busy;
    json["energy_barrier_j"] = f.energy->barrier;
    json["energy_parked_j"] = f.energy->parked;
  }
  return json;
}

std::string LatencyRow(const char* name, const Histogram& h) {
  std::string row = absl::StrFormat("  %-14s", name);
  for (const double value :
       {h.mean(), h.Quantile(0.5), h.Quantile(0.9), h.Quantile(0.99), h.Quantile(0.999), h.max()}) {
    absl::StrAppendFormat(&row, " %10s", h.count() == 0 ? "-" : absl::StrFormat("%.2f", value * 1e3));
  }
  return row + "\n";
}

std::string FailuresText(const Results& r) {
  std::string out;
  for (const auto& [code, count] : r.failed) {
    absl::StrAppendFormat(&out, "  failed         %s: %d, first: %s\n", code, count,
                          r.failed_examples.at(code));
  }
  for (const std::string& example : r.breach_examples)
    absl::StrAppend(&out, "  broken stream  ", example, "\n");
  return out;
}

std::string BarrierText(const BarrierFigures& f) {
  std::string out = absl::StrFormat(
      "  group          %s, %d ranks%s, %d steps of %.2f ms\n"
      "  barrier        idle %.2f %% (1 - mean/max load %.2f %%), imbalance %.0f tokens\n"
      "  router         gap %.3f ms, decision %.3f ms (%d stopped early), %d late plans, all slots taken in "
      "%.0f %% of "
      "steps\n",
      f.policy, f.ranks, f.epoch_changed ? " (membership changed)" : "", f.steps, f.step_s_mean * 1e3,
      f.idle_fraction * 100, f.load_idle_fraction * 100, f.avg_imbalance_tokens, f.gap_s_mean * 1e3,
      f.decide_s_mean * 1e3, f.decisions_stopped_early, f.late_plans, f.saturated_fraction * 100);
  if (f.energy.has_value()) {
    absl::StrAppendFormat(&out, "  energy         %.0f J at work, %.0f J waiting in steps, %.0f J parked\n",
                          f.energy->busy, f.energy->barrier, f.energy->parked);
  }
  return out;
}

}  // namespace

std::string ToJson(const Report& report) {
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
  // Error texts come from the other end and need not be UTF-8.
  return absl::StrCat(json.dump(2, ' ', false, Json::error_handler_t::replace), "\n");
}

std::string ToTable(const Report& report) {
  const Results& r = report.results;
  std::string out = absl::StrFormat(
      "bfio_loadgen: %s%d requests, %d completed, %d failed, %d broken streams, %d retries, %.1f s\n"
      "  throughput     %.0f tokens/s, %.1f requests/s\n",
      report.interrupted ? "interrupted: " : "", r.requests_sent, r.completed, r.failed_total(),
      r.stream_breaches, r.retries, r.duration_s, r.tokens_per_s(), r.requests_per_s());
  absl::StrAppendFormat(&out, "  %-14s %10s %10s %10s %10s %10s %10s\n", "in ms", "mean", "p50", "p90", "p99",
                        "p99.9", "max");
  absl::StrAppend(&out, LatencyRow("TTFT", r.ttft_s), LatencyRow("TPOT", r.tpot_s),
                  LatencyRow("ITL", r.itl_s), LatencyRow("E2E", r.e2e_s));
  if (r.schedule_lag_s.count() > 0) absl::StrAppend(&out, LatencyRow("sent late by", r.schedule_lag_s));
  if (r.resumed > 0) {
    absl::StrAppend(&out, "  resumed        ", r.resumed, " requests, ", r.token_mismatches,
                    " tokens were others afterwards\n");
  }
  if (r.interrupted > 0) absl::StrAppend(&out, "  cancelled      ", r.interrupted, "\n");
  if (r.not_sent > 0) {
    absl::StrAppend(&out, "  not sent       ", r.not_sent, " were due, but could not be sent in time\n");
  }
  if (report.trace.dropped > 0) {
    absl::StrAppend(&out, "  bad trace rows ", report.trace.dropped,
                    ", first: ", report.trace.dropped_examples.front(), "\n");
  }
  if (report.barrier.has_value()) absl::StrAppend(&out, BarrierText(*report.barrier));
  absl::StrAppend(&out, FailuresText(r));
  return out;
}

}  // namespace bfio::loadgen
