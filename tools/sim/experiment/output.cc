#include "tools/sim/experiment/output.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/atomic_file.h"
#include "nlohmann/json.hpp"
#include "tools/report/page.h"

namespace bfio::sim {
namespace {

using nlohmann::ordered_json;

// JSON has no NaN.
ordered_json Number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json Numbers(const std::vector<double>& values) {
  ordered_json json = ordered_json::array();
  for (double value : values) json.push_back(Number(value));
  return json;
}

ordered_json CellJson(const report::Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* real = std::get_if<double>(&cell)) return Number(*real);
  if (const auto* whole = std::get_if<int64_t>(&cell)) return *whole;
  return nullptr;
}

std::string CellText(const report::Cell& cell, int digits) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* whole = std::get_if<int64_t>(&cell)) return absl::StrCat(*whole);
  const auto* real = std::get_if<double>(&cell);
  if (real == nullptr || !std::isfinite(*real)) return "";
  const double size = std::abs(*real);
  const int whole_digits = size >= 1 ? static_cast<int>(std::log10(size)) + 1 : 1;
  if (size > 0 && (size < 1e-4 || size >= 1e9)) return absl::StrFormat("%.*g", digits, *real);
  return absl::StrFormat("%.*f", std::max(0, digits - whole_digits), *real);
}

ordered_json TableJson(const report::Table& table) {
  ordered_json columns = ordered_json::array(), rows = ordered_json::array();
  for (const report::Column& column : table.columns) {
    columns.push_back({{"name", column.name}, {"unit", column.unit}});
  }
  for (const auto& row : table.rows) {
    ordered_json& cells = rows.emplace_back(ordered_json::array());
    for (const report::Cell& cell : row) cells.push_back(CellJson(cell));
  }
  return {{"title", table.title}, {"note", table.note}, {"columns", columns}, {"rows", rows}};
}

ordered_json ChartJson(const report::Chart& chart) {
  ordered_json series = ordered_json::array();
  for (const report::Series& one : chart.series) {
    series.push_back({{"name", one.name},
                      {"x", Numbers(one.x)},
                      {"y", Numbers(one.y)},
                      {"low", Numbers(one.low)},
                      {"high", Numbers(one.high)}});
  }
  return {{"title", chart.title},
          {"note", chart.note},
          {"x", chart.x.label},
          {"x_unit", chart.x.unit},
          {"categories", chart.x.categories},
          {"y", chart.y.label},
          {"y_unit", chart.y.unit},
          {"series", series}};
}

}  // namespace

nlohmann::ordered_json FindingsJson(const Findings& findings) {
  ordered_json json = {{"experiment", findings.name}, {"title", findings.title}, {"text", findings.text}};
  ordered_json& parameters = json["parameters"] = ordered_json::object();
  for (const auto& [name, value] : findings.parameters) parameters[name] = value;
  ordered_json& tables = json["tables"] = ordered_json::array();
  for (const report::Table& table : findings.tables) tables.push_back(TableJson(table));
  ordered_json& charts = json["charts"] = ordered_json::array();
  for (const report::Chart& chart : findings.charts) charts.push_back(ChartJson(chart));
  return json;
}

std::string FindingsHtml(const Findings& findings) {
  report::Page page(findings.title);
  for (size_t i = 0; i < findings.text.size(); ++i) {
    if (i == 0) {
      page.Lead(findings.text[i]);
    } else {
      page.Text(findings.text[i]);
    }
  }
  if (!findings.charts.empty()) page.Heading("Figures");
  for (const report::Chart& chart : findings.charts) page.Add(chart);
  if (!findings.tables.empty()) page.Heading("Tables");
  for (const report::Table& table : findings.tables) page.Add(table);
  page.Heading("Parameters");
  page.Parameters(findings.parameters);
  return page.Html();
}

std::string TableText(const report::Table& table) {
  std::vector<std::vector<std::string>> lines;
  std::vector<std::string>& head = lines.emplace_back();
  for (const report::Column& column : table.columns) {
    head.push_back(column.unit.empty() ? column.name : absl::StrCat(column.name, " [", column.unit, "]"));
  }
  for (const auto& row : table.rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (size_t i = 0; i < table.columns.size(); ++i) {
      line.push_back(i < row.size() ? CellText(row[i], table.columns[i].digits) : "");
    }
  }
  std::vector<size_t> widths(table.columns.size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text = absl::StrCat(table.title, "\n");
  for (const auto& line : lines) {
    std::string row;
    for (size_t i = 0; i < line.size(); ++i) {
      // Names to the left, numbers to the right.
      absl::StrAppend(&row, i == 0 ? absl::StrFormat("%-*s", widths[i], line[i])
                                   : absl::StrFormat("  %*s", widths[i], line[i]));
    }
    row.erase(row.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, row, "\n");
  }
  return text;
}

absl::Status MakeFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot make folder ", folder, ": ", error.message()));
}

absl::StatusOr<std::vector<std::string>> WriteFindings(const Findings& findings, const std::string& folder) {
  if (absl::Status status = MakeFolder(folder); !status.ok()) return status;
  std::vector<std::string> paths;
  const auto write = [&](const std::string& suffix, const std::string& text) -> absl::Status {
    paths.push_back((std::filesystem::path(folder) / absl::StrCat(findings.name, suffix)).string());
    return WriteFileAtomically(paths.back(), text);
  };
  for (size_t i = 0; i < findings.tables.size(); ++i) {
    const std::string suffix = i == 0 ? ".csv" : absl::StrCat("_", i + 1, ".csv");
    if (absl::Status status = write(suffix, report::Csv(findings.tables[i])); !status.ok()) return status;
  }
  if (absl::Status status = write(
          ".json",
          absl::StrCat(FindingsJson(findings).dump(1, ' ', false, nlohmann::json::error_handler_t::replace),
                       "\n"));
      !status.ok()) {
    return status;
  }
  if (absl::Status status = write(".html", FindingsHtml(findings)); !status.ok()) return status;
  return paths;
}

}  // namespace bfio::sim
