#include "tools/loadgen/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::loadgen {
namespace {

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

std::string GoodputText(const Results& r) {
  const Goodput& g = r.goodput;
  std::string out =
      absl::StrFormat("  goodput        %.1f requests/s, %.2f %% of requests met the latency limits",
                      r.good_per_s(), r.good_share().value_or(0) * 100);
  const auto missed = [&out](const char* name, const std::optional<double>& limit, uint64_t count) {
    if (limit.has_value()) absl::StrAppendFormat(&out, "; %s above %g s: %d", name, *limit, count);
  };
  missed("TTFT", g.limits().ttft_s, g.missed_ttft());
  missed("TPOT", g.limits().tpot_s, g.missed_tpot());
  missed("E2E", g.limits().e2e_s, g.missed_e2e());
  return out + "\n";
}

std::string BarrierText(const BarrierMeasurements& f) {
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
    absl::StrAppendFormat(&out,
                          "  energy         %.0f J computing, %.0f J waiting at the barrier, %.0f J parked\n",
                          f.energy->busy_j(), f.energy->barrier_j(), f.energy->parked_j());
  }
  return out;
}

}  // namespace

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
  if (r.goodput.limits().any()) absl::StrAppend(&out, GoodputText(r));
  if (r.resumed > 0) {
    absl::StrAppend(&out, "  resumed        ", r.resumed, " requests, ", r.token_mismatches,
                    " tokens differed after the resume\n");
  }
  if (r.interrupted > 0) absl::StrAppend(&out, "  cancelled      ", r.interrupted, "\n");
  if (r.not_sent > 0) {
    absl::StrAppend(&out, "  not sent       ", r.not_sent,
                    " requests were due but could not be sent in time\n");
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
