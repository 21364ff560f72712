#include "tools/loadgen/compare.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/loadgen/run_charts.h"
#include "tools/loadgen/run_page.h"
#include "tools/report/numbers.h"
#include "tools/report/page.h"
#include "tools/report/table.h"

namespace bfio::loadgen {
namespace {

constexpr int kDigits = 4;
constexpr size_t kWidestName = 24;

struct Figure {
  std::string name;
  std::string path;
  double factor = 1;
};

std::vector<Figure> Figures() {
  std::vector<Figure> figures = {{"throughput, tokens/s", "/throughput_tokens_per_s"},
                                 {"throughput, requests/s", "/throughput_requests_per_s"},
                                 {"goodput, requests/s", "/goodput/requests_per_s"},
                                 {"within the limits, %", "/goodput/share", 100},
                                 {"knee: held, requests/s", "/knee/held_rate"}};
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s", "schedule_lag_s"}) {
    for (const char* figure : {"mean", "p50", "p90", "p99", "p99.9"}) {
      figures.push_back(
          {absl::StrCat(LatencyName(key), " ", figure, ", ms"), absl::StrCat("/", key, "/", figure), 1e3});
    }
  }
  const Figure more[] = {{"idle at the barrier, %", "/barrier/idle_fraction", 100},
                         {"1 - mean/max load, %", "/barrier/load_idle_fraction", 100},
                         {"imbalance, tokens", "/barrier/avg_imbalance_tokens"},
                         {"mean step, ms", "/barrier/step_s_mean", 1e3},
                         {"gap to next step, ms", "/barrier/gap_s_mean", 1e3},
                         {"decision, ms", "/barrier/decide_s_mean", 1e3},
                         {"requests completed", "/completed"},
                         {"not sent", "/not_sent"},
                         {"broken streams", "/stream_breaches"},
                         {"duration, s", "/duration_s"}};
  figures.insert(figures.end(), std::begin(more), std::end(more));
  return figures;
}

std::string ChangeText(const std::optional<double>& change) {
  return change.has_value() ? absl::StrFormat("%+.1f %%", *change * 100) : "";
}

std::string ValueText(double value) {
  return std::isfinite(value) ? report::Significant(value, kDigits) : "-";
}

std::string Name(const RunDocument& run) {
  const std::string& name = run.name();
  return name.size() <= kWidestName ? name : absl::StrCat("..", name.substr(name.size() - kWidestName + 2));
}

report::Table FiguresTable(const std::vector<RunDocument>& runs) {
  report::Table table = {.title = absl::StrCat("Changes are relative to ", runs[0].name()),
                         .columns = {{.name = "figure"}}};
  for (size_t i = 0; i < runs.size(); ++i) {
    table.columns.push_back({.name = runs[i].name(), .digits = kDigits});
    if (i > 0) table.columns.push_back({.name = "change", .unit = "%", .decimals = 1});
  }
  for (const Difference& difference : Differences(runs)) {
    std::vector<report::Cell> row = {difference.name};
    for (size_t i = 0; i < runs.size(); ++i) {
      row.emplace_back(difference.values[i]);
      if (i > 0) row.emplace_back(difference.changes[i].value_or(NAN) * 100);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

void AddSettings(const std::vector<RunDocument>& runs, report::Page* page) {
  page->Heading("Settings");
  report::Table table = {.title = "Settings that differ", .columns = {{.name = "setting"}}};
  for (const RunDocument& run : runs) table.columns.push_back({.name = run.name()});
  for (const SettingDifference& setting : SettingDifferences(runs)) {
    std::vector<report::Cell> row = {setting.name};
    row.insert(row.end(), setting.values.begin(), setting.values.end());
    table.rows.push_back(std::move(row));
  }
  if (table.rows.empty()) {
    page->Text("All runs had the same settings.");
  } else {
    page->Add(std::move(table));
  }
}

}  // namespace

std::vector<Difference> Differences(const std::vector<RunDocument>& runs) {
  std::vector<Difference> differences;
  const auto add = [&](std::string name, const auto& value_of) {
    Difference row = {.name = std::move(name)};
    for (const RunDocument& run : runs) {
      const double value = value_of(run);
      row.values.push_back(value);
      const double change = (value - row.values[0]) / row.values[0];
      row.changes.push_back(std::isfinite(change) ? std::optional<double>(change) : std::nullopt);
    }
    if (std::any_of(row.values.begin(), row.values.end(), [](double v) { return std::isfinite(v); })) {
      differences.push_back(std::move(row));
    }
  };
  for (const Figure& figure : Figures()) {
    add(figure.name, [&](const RunDocument& run) { return run.Number(figure.path) * figure.factor; });
  }
  add("requests failed", [](const RunDocument& run) {
    double failed = 0;
    for (const auto& [code, count] : run.Members("/failed")) {
      failed += static_cast<double>(run.Count(absl::StrCat("/failed/", code)));
    }
    return failed;
  });
  return differences;
}

std::vector<SettingDifference> SettingDifferences(const std::vector<RunDocument>& runs) {
  std::vector<SettingDifference> all;
  const auto add = [&](const std::string& name, const std::string& value, size_t run) {
    auto found = std::find_if(all.begin(), all.end(), [&](const auto& other) { return other.name == name; });
    if (found == all.end()) {
      all.push_back({name, std::vector<std::string>(runs.size())});
      found = all.end() - 1;
    }
    found->values[run] = value;
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    add("policy", runs[i].Text("/barrier/policy"), i);
    add("ranks", absl::StrCat(runs[i].Count("/barrier/ranks")), i);
    add("workload", runs[i].Text("/workload/source"), i);
    add("version", runs[i].Text("/version"), i);
    for (const auto& [name, value] : runs[i].Members("/settings")) add(name, value, i);
    for (const auto& [name, value] : runs[i].Members("/goodput/limits"))
      add(absl::StrCat("goodput limit ", name), value, i);
  }
  std::erase_if(all, [](const SettingDifference& setting) {
    return std::all_of(setting.values.begin(), setting.values.end(),
                       [&](const std::string& value) { return value == setting.values[0]; });
  });
  return all;
}

std::string ComparisonText(const std::vector<RunDocument>& runs) {
  std::string out = absl::StrFormat("%-26s", "");
  for (size_t i = 0; i < runs.size(); ++i) {
    absl::StrAppendFormat(&out, " %*s", i == 0 ? 12 : 22, Name(runs[i]));
  }
  absl::StrAppend(&out, "\n");
  for (const Difference& difference : Differences(runs)) {
    absl::StrAppendFormat(&out, "%-26s", difference.name);
    for (size_t i = 0; i < runs.size(); ++i) {
      absl::StrAppendFormat(&out, " %12s", ValueText(difference.values[i]));
      if (i > 0) absl::StrAppendFormat(&out, " %9s", ChangeText(difference.changes[i]));
    }
    absl::StrAppend(&out, "\n");
  }
  for (const SettingDifference& setting : SettingDifferences(runs)) {
    absl::StrAppend(&out, "differs: ", setting.name, ":");
    for (size_t i = 0; i < runs.size(); ++i) {
      absl::StrAppend(&out, i == 0 ? " " : " | ", setting.values[i].empty() ? "-" : setting.values[i]);
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

std::string ComparisonPage(const std::vector<RunDocument>& runs) {
  std::string names = runs[0].name();
  for (size_t i = 1; i < runs.size(); ++i)
    absl::StrAppend(&names, i + 1 < runs.size() ? ", " : " and ", runs[i].name());
  report::Page page(absl::StrCat("Load tests compared: ", names));
  page.Lead(absl::StrCat("What ", runs.size(), " runs of bfio_loadgen measured, beside each other."));
  page.Heading("Figures");
  page.Add(FiguresTable(runs));
  if (const report::Chart levels = LevelLatencyChart(runs); HasData(levels)) {
    page.Heading("Rates");
    page.Add(levels);
  }
  page.Heading("Over time");
  AddIfAny(&page, ThroughputChart(runs));
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s"}) AddIfAny(&page, LatencyChart(runs, key));
  AddIfAny(&page, IdleChart(runs));
  page.Heading("Distributions");
  for (const char* key : {"ttft_s", "tpot_s", "itl_s", "e2e_s"})
    AddIfAny(&page, DistributionChart(runs, key));
  AddSettings(runs, &page);
  for (const RunDocument& run : runs) {
    page.Text(
        absl::StrCat(run.name(), ": ", WorkloadText(run), ", started at ", run.Text("/started_at"), "."));
  }
  return page.Html();
}

}  // namespace bfio::loadgen
