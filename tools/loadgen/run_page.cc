#include "tools/loadgen/run_page.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/loadgen/run_charts.h"
#include "tools/report/chart.h"
#include "tools/report/numbers.h"
#include "tools/report/page.h"
#include "tools/report/table.h"

namespace bfio::loadgen {
namespace {

using report::Cell;
using report::Chart;
using report::Column;
using report::Page;
using report::Table;

int64_t FailedTotal(const RunDocument& run) {
  int64_t total = 0;
  for (const auto& [code, count] : run.Members("/failed")) total += run.Count(absl::StrCat("/failed/", code));
  return total;
}

std::string Lead(const RunDocument& run) {
  const int64_t failed = FailedTotal(run);
  std::string text =
      absl::StrCat(report::Thousands(run.Count("/completed")), " requests completed in ",
                   report::Significant(run.Number("/duration_s"), 3), " s, ",
                   failed == 0 ? "none failed: " : absl::StrCat(report::Thousands(failed), " failed: "),
                   report::Fixed(run.Number("/throughput_tokens_per_s"), 0), " tokens/s, ",
                   report::Fixed(run.Number("/throughput_requests_per_s"), 1), " requests/s.");
  if (run.Count("/interrupted") > 0) absl::StrAppend(&text, " The run was interrupted.");
  if (run.Has("/knee")) absl::StrAppend(&text, " Knee: ", run.Text("/knee/text"), ".");
  return text;
}

Column Milliseconds(const char* name) {
  return {.name = name, .unit = "ms", .decimals = 2};
}

Table LatencyTable(const RunDocument& run) {
  Table table = {
      .title = "Latencies",
      .note =
          "From the time a request was due, not from the time it was sent. TPOT is a request's mean "
          "time between tokens, ITL the single gaps.",
      .columns = {{.name = "latency"}}};
  static constexpr const char* kFigures[] = {"mean", "p50", "p90", "p99", "p99.9", "max"};
  for (const char* figure : kFigures) table.columns.push_back(Milliseconds(figure));
  table.columns.push_back({.name = "samples"});
  const auto add = [&](const std::string& name, const std::string& path) {
    if (run.Count(path + "/count") == 0) return;
    std::vector<Cell> row = {name};
    for (const char* figure : kFigures) row.emplace_back(run.Number(absl::StrCat(path, "/", figure)) * 1e3);
    row.emplace_back(run.Count(path + "/count"));
    table.rows.push_back(std::move(row));
  };
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s", "schedule_lag_s"})
    add(LatencyName(key), absl::StrCat("/", key));
  add("E2E of agents, all calls", "/agents/e2e_s");
  return table;
}

void AddCounts(const RunDocument& run, Page* page) {
  std::vector<std::pair<std::string, std::string>> counts;
  const auto add = [&](const char* name, const char* path, bool always) {
    if (always || run.Count(path) != 0) counts.emplace_back(name, report::Thousands(run.Count(path)));
  };
  add("requests sent", "/requests_sent", true);
  add("completed", "/completed", true);
  counts.emplace_back("failed", report::Thousands(FailedTotal(run)));
  add("agents completed", "/agents/completed", false);
  add("agents failed", "/agents/failed", false);
  add("calls that failed agents did not send", "/agents/calls_not_sent", false);
  add("cancelled by the interruption", "/interrupted", false);
  add("due, but not sent in time", "/not_sent", false);
  add("retries", "/retries", false);
  add("resumed", "/resumed", false);
  add("tokens that were others after a resume", "/token_mismatches", false);
  add("broken streams", "/stream_breaches", true);
  add("prompt tokens", "/prompt_tokens", true);
  add("output tokens", "/output_tokens", true);
  page->Parameters(std::move(counts));
}

void AddGoodput(const RunDocument& run, Page* page) {
  if (!run.Has("/goodput")) return;
  page->Heading("Goodput");
  page->Text(absl::StrFormat("%.2f %% of the requests due met every limit: %.1f requests/s.",
                             run.Number("/goodput/share") * 100, run.Number("/goodput/requests_per_s")));
  Table table = {
      .title = "Limits",
      .note = "A request may be beyond several. Those that failed or were not sent are within none.",
      .columns = {{.name = "latency"}, {.name = "limit"}, {.name = "completed requests beyond it"}}};
  for (const char* name : {"ttft", "tpot", "e2e"}) {
    const double limit = run.Number(absl::StrCat("/goodput/limits/", name, "_s"));
    if (!std::isfinite(limit)) continue;
    table.rows.push_back({LatencyName(absl::StrCat(name, "_s")), absl::StrFormat("%g s", limit),
                          run.Count(absl::StrCat("/goodput/missed/", name))});
  }
  page->Add(std::move(table));
}

void AddLevels(const RunDocument& run, Page* page) {
  if (run.Size("/levels") == 0) return;
  page->Heading("Rates and the knee");
  if (run.Has("/knee")) page->Text(absl::StrCat("Knee: ", run.Text("/knee/text"), "."));
  AddIfAny(page, LevelRatesChart(run));
  AddIfAny(page, LevelLatencyChart(run));
  const bool goodput = run.Has("/goodput");
  Table table = {.title = "Rates",
                 .columns = {{.name = "rate", .unit = "requests/s"},
                             {.name = "due"},
                             {.name = "completed"},
                             {.name = "within limits", .unit = "%", .decimals = 1},
                             {.name = "served", .unit = "%", .decimals = 1},
                             {.name = "throughput", .unit = "tokens/s", .decimals = 0},
                             Milliseconds("TTFT p99"),
                             Milliseconds("TPOT p99"),
                             Milliseconds("E2E p99"),
                             {.name = "verdict"}}};
  if (!goodput) table.columns.erase(table.columns.begin() + 3);
  for (size_t i = 0; i < run.Size("/levels"); ++i) {
    const auto number = [&](const char* member) {
      return run.Number(absl::StrCat("/levels/", i, "/", member));
    };
    const auto count = [&](const char* member) {
      return run.Count(absl::StrCat("/levels/", i, "/", member));
    };
    std::vector<Cell> row = {number("rate"), count("sent") + count("not_sent"), count("completed")};
    if (goodput) row.emplace_back(number("good_share") * 100);
    row.insert(row.end(), {number("served_share") * 100, number("throughput_tokens_per_s"),
                           number("ttft_s/p99") * 1e3, number("tpot_s/p99") * 1e3, number("e2e_s/p99") * 1e3,
                           run.Text(absl::StrCat("/levels/", i, "/verdict"))});
    table.rows.push_back(std::move(row));
  }
  page->Add(std::move(table));
}

void AddGroup(const RunDocument& run, Page* page) {
  if (!run.Has("/barrier") && !run.Has("/group")) return;
  page->Heading("The group");
  if (run.Has("/barrier")) {
    const auto number = [&](const char* member) { return run.Number(absl::StrCat("/barrier/", member)); };
    page->Parameters(
        {{"policy", run.Text("/barrier/policy")},
         {"ranks", report::Thousands(run.Count("/barrier/ranks"))},
         {"steps", report::Thousands(run.Count("/barrier/steps"))},
         {"mean step", absl::StrFormat("%.2f ms", number("step_s_mean") * 1e3)},
         {"idle at the barrier", absl::StrFormat("%.2f %%", number("idle_fraction") * 100)},
         {"1 - mean/max load", absl::StrFormat("%.2f %%", number("load_idle_fraction") * 100)},
         {"mean imbalance", absl::StrCat(report::Fixed(number("avg_imbalance_tokens"), 0), " tokens")},
         {"gap from barrier to next step", absl::StrFormat("%.3f ms", number("gap_s_mean") * 1e3)},
         {"decision", absl::StrFormat("%.3f ms", number("decide_s_mean") * 1e3)},
         {"late plans", report::Thousands(run.Count("/barrier/late_plans"))},
         {"steps with every slot taken", absl::StrFormat("%.0f %%", number("saturated_fraction") * 100)}});
  }
  AddIfAny(page, RankLoadChart(run));
  AddIfAny(page, RankIdleChart(run));
  if (run.Count("/group/missed_steps") > 0) {
    page->Text(absl::StrCat(report::Thousands(run.Count("/group/missed_steps")),
                            " steps are not in the charts: the generator read too slowly."));
  }
}

void AddFailures(const RunDocument& run, Page* page) {
  if (run.Size("/failed") == 0 && run.Size("/breach_examples") == 0) return;
  page->Heading("Failures");
  Table table = {.title = "By status",
                 .columns = {{.name = "status"}, {.name = "requests"}, {.name = "first message"}}};
  for (const auto& [code, count] : run.Members("/failed")) {
    table.rows.push_back(
        {code, run.Count(absl::StrCat("/failed/", code)), run.Text(absl::StrCat("/failed_examples/", code))});
  }
  if (!table.rows.empty()) page->Add(std::move(table));
  for (size_t i = 0; i < run.Size("/breach_examples"); ++i) {
    page->Text(absl::StrCat("Broken stream: ", run.Text(absl::StrCat("/breach_examples/", i))));
  }
}

}  // namespace

void AddIfAny(Page* page, Chart chart) {
  if (HasData(chart)) page->Add(std::move(chart));
}

std::string WorkloadText(const RunDocument& run) {
  const std::string arrival = run.Text("/settings/arrival");
  std::string text = absl::StrCat(run.Text("/workload/source"), ", ");
  if (arrival == "closed") {
    return absl::StrCat(text, "closed loop of ", run.Count("/settings/concurrency"), " requests");
  }
  absl::StrAppend(&text, arrival, " arrivals");
  const double rate = run.Number("/settings/rate");
  if (arrival == "ramp") {
    absl::StrAppendFormat(&text, ", %.4g to %.4g requests/s", rate, run.Number("/settings/rate_to"));
  } else if (const std::vector<double> rates = run.Numbers("/settings/rates"); !rates.empty()) {
    absl::StrAppendFormat(&text, ", %.4g to %.4g requests/s", rates.front(), rates.back());
  } else if (rate > 0) {
    absl::StrAppendFormat(&text, ", %.4g requests/s", rate);
  }
  return text;
}

std::string RunPage(const RunDocument& run) {
  Page page(absl::StrCat("Load test: ", WorkloadText(run)));
  page.Lead(Lead(run));
  page.Heading("Figures");
  page.Add(LatencyTable(run));
  AddCounts(run, &page);
  AddGoodput(run, &page);
  AddLevels(run, &page);
  page.Heading("Over time");
  AddIfAny(&page, ThroughputChart(run));
  AddIfAny(&page, RequestsChart(run));
  AddIfAny(&page, UnderWayChart(run));
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s"}) AddIfAny(&page, LatencyChart(run, key));
  page.Heading("Distributions");
  AddIfAny(&page, DistributionChart(run));
  AddGroup(run, &page);
  if (Chart lag = LatencyChart(run, "schedule_lag_s"); HasData(lag)) {
    page.Heading("The generator itself");
    page.Add(std::move(lag));
  }
  AddFailures(run, &page);
  page.Heading("Settings");
  std::vector<std::pair<std::string, std::string>> settings = {
      {"started at", run.Text("/started_at")},
      {"bfio_loadgen", run.Text("/version")},
      {"workload", absl::StrCat(run.Text("/workload/source"), " (", run.Text("/workload/format"), "), ",
                                report::Thousands(run.Count("/workload/requests")), " requests, ",
                                report::Thousands(run.Count("/workload/dropped")), " rows dropped")}};
  for (auto& setting : run.Members("/settings")) {
    if (!setting.second.empty()) settings.push_back(std::move(setting));
  }
  page.Parameters(std::move(settings));
  return page.Html();
}

}  // namespace bfio::loadgen
