#include "tools/report/chart_table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/report/categories.h"
#include "tools/report/numbers.h"

namespace bfio::report {
namespace {

constexpr int kDigits = 5;
constexpr size_t kMostColumns = 10;
constexpr size_t kMostRows = 60;
constexpr size_t kMostValues = 300;  // of a list of single points

bool HasIntervals(const Series& series) {
  return !series.low.empty() && !series.high.empty();
}

size_t PointCount(const Series& series) {
  return std::min(series.x.size(), series.y.size());
}

Cell ValueAt(const std::vector<double>& values, size_t i) {
  return i < values.size() ? Cell(values[i]) : Cell();
}

// A column for each series' values, and for the ends of its intervals.
void AddColumns(const Chart& chart, Table* table) {
  for (const Series& series : chart.series) {
    const std::string name = series.name.empty() ? chart.y.label : series.name;
    table->columns.push_back({name, chart.y.unit, kDigits});
    if (!HasIntervals(series)) continue;
    table->columns.push_back({absl::StrCat(name, ", low"), chart.y.unit, kDigits});
    table->columns.push_back({absl::StrCat(name, ", high"), chart.y.unit, kDigits});
  }
}

void AddValues(const Series& series, size_t i, std::vector<Cell>* row) {
  row->push_back(ValueAt(series.y, i));
  if (!HasIntervals(series)) return;
  row->push_back(ValueAt(series.low, i));
  row->push_back(ValueAt(series.high, i));
}

Table BarsTable(const Chart& chart) {
  Table table{.title = "Values"};
  table.columns.push_back({chart.x.label, chart.x.unit});
  AddColumns(chart, &table);
  for (size_t i = 0; i < CategoryCount(chart); ++i) {
    std::vector<Cell> row = {CategoryName(chart, i)};
    for (const Series& series : chart.series) AddValues(series, i, &row);
    table.rows.push_back(std::move(row));
  }
  return table;
}

bool SharesX(const Chart& chart) {
  if (chart.series.empty() || chart.series.size() > kMostColumns) return false;
  const std::vector<double>& x = chart.series[0].x;
  return x.size() <= kMostRows &&
         std::all_of(chart.series.begin(), chart.series.end(),
                     [&](const Series& series) { return series.x == x && series.y.size() >= x.size(); });
}

Table TableByX(const Chart& chart) {
  Table table{.title = "Values"};
  table.columns.push_back({chart.x.label, chart.x.unit, kDigits});
  AddColumns(chart, &table);
  for (size_t i = 0; i < chart.series[0].x.size(); ++i) {
    std::vector<Cell> row = {chart.series[0].x[i]};
    for (const Series& series : chart.series) AddValues(series, i, &row);
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table TableOfPoints(const Chart& chart) {
  Table table{.title = "Values"};
  const bool intervals = std::any_of(chart.series.begin(), chart.series.end(), HasIntervals);
  table.columns = {
      {"Series", ""}, {chart.x.label, chart.x.unit, kDigits}, {chart.y.label, chart.y.unit, kDigits}};
  if (intervals) table.columns.push_back({"low", chart.y.unit, kDigits});
  if (intervals) table.columns.push_back({"high", chart.y.unit, kDigits});
  for (const Series& series : chart.series) {
    for (size_t i = 0; i < PointCount(series); ++i) {
      std::vector<Cell> row = {series.name, series.x[i], series.y[i], ValueAt(series.low, i),
                               ValueAt(series.high, i)};
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

std::vector<Cell> SummaryOf(const Series& series) {
  int64_t count = 0;
  double mean = 0;
  double lowest = HUGE_VAL;
  double highest = -HUGE_VAL;
  for (size_t i = 0; i < PointCount(series); ++i) {
    const double y = series.y[i];
    if (!std::isfinite(y) || !std::isfinite(series.x[i])) continue;
    ++count;
    mean += y / static_cast<double>(count) - mean / static_cast<double>(count);
    lowest = std::min(lowest, y);
    highest = std::max(highest, y);
  }
  if (count == 0) return {series.name, count};
  return {series.name, count, lowest, mean, highest};
}

Table Summary(const Chart& chart) {
  const std::string& unit = chart.y.unit;
  Table table{.title = absl::StrCat("Each series in short: ", chart.y.label)};
  table.columns = {{"Series", ""},
                   {"points", ""},
                   {"lowest", unit, kDigits},
                   {"mean", unit, kDigits},
                   {"highest", unit, kDigits}};
  for (const Series& series : chart.series) table.rows.push_back(SummaryOf(series));
  return table;
}

}  // namespace

Table ChartTable(const Chart& chart) {
  size_t points = 0;
  for (const Series& series : chart.series) points += PointCount(series);
  Table table = chart.kind == Chart::Kind::kBars ? BarsTable(chart)
                : SharesX(chart)                 ? TableByX(chart)
                : points <= kMostValues          ? TableOfPoints(chart)
                                                 : Summary(chart);
  for (const ReferenceLine& line : chart.references) {
    absl::StrAppend(&table.note, table.note.empty() ? "Reference lines: " : "; ", line.name, " ",
                    Significant(line.y, kDigits), chart.y.unit.empty() ? "" : " ", chart.y.unit);
  }
  return table;
}

}  // namespace bfio::report
