#include "tools/loadgen/compare.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bfio::loadgen {
namespace {

constexpr int kDigits = 4;
constexpr double kMostDecimals = 12;
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
  static constexpr std::pair<const char*, const char*> kLatencies[] = {{"TTFT", "/ttft_s/"},
                                                                       {"TPOT", "/tpot_s/"},
                                                                       {"ITL", "/itl_s/"},
                                                                       {"E2E", "/e2e_s/"},
                                                                       {"sent late by", "/schedule_lag_s/"}};
  for (const auto& [name, path] : kLatencies) {
    for (const char* figure : {"mean", "p50", "p90", "p99", "p99.9"}) {
      figures.push_back({absl::StrCat(name, " ", figure, ", ms"), absl::StrCat(path, figure), 1e3});
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

// `value` with kDigits significant digits, without exponent, and with at least all digits of the integer
// part.
std::string ValueText(double value) {
  if (!std::isfinite(value)) return "-";
  const double leading = value == 0 ? kDigits - 1 : std::floor(std::log10(std::abs(value)));
  return absl::StrFormat("%.*f", static_cast<int>(std::clamp(kDigits - 1 - leading, 0.0, kMostDecimals)),
                         value);
}

std::string Name(const RunDocument& run) {
  const std::string& name = run.name();
  return name.size() <= kWidestName ? name : absl::StrCat("..", name.substr(name.size() - kWidestName + 2));
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

}  // namespace bfio::loadgen
