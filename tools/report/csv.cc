#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/report/numbers.h"
#include "tools/report/table.h"

namespace bfio::report {
namespace {

std::string Quoted(absl::string_view field) {
  if (field.find_first_of(",\"\r\n") == absl::string_view::npos) return std::string(field);
  std::string text = "\"";
  for (const char c : field) {
    if (c == '"') text += '"';
    text += c;
  }
  return text + '"';
}

std::string Field(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return Quoted(*text);
  if (const auto* real = std::get_if<double>(&cell)) return FullPrecision(*real);
  if (const auto* integer = std::get_if<int64_t>(&cell)) return absl::StrCat(*integer);
  return "";
}

}  // namespace

std::string Csv(const Table& table) {
  std::string csv;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const Column& column = table.columns[i];
    const std::string name =
        column.unit.empty() ? column.name : absl::StrCat(column.name, " [", column.unit, "]");
    absl::StrAppend(&csv, i == 0 ? "" : ",", Quoted(name));
  }
  csv += '\n';
  for (const std::vector<Cell>& row : table.rows) {
    for (size_t i = 0; i < table.columns.size(); ++i) {
      absl::StrAppend(&csv, i == 0 ? "" : ",", i < row.size() ? Field(row[i]) : "");
    }
    csv += '\n';
  }
  return csv;
}

}  // namespace bfio::report
