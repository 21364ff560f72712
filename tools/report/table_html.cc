#include "tools/report/table_html.h"

#include <cmath>
#include <cstddef>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/report/markup.h"
#include "tools/report/numbers.h"

namespace bfio::report {
namespace {

std::string RealText(double value, const Column& column) {
  if (!std::isfinite(value)) return "";
  return column.decimals.has_value() ? Fixed(value, *column.decimals) : Significant(value, column.digits);
}

std::string CellText(const Cell& cell, const Column& column) {
  if (const auto* text = std::get_if<std::string>(&cell)) return Escape(*text);
  if (const auto* real = std::get_if<double>(&cell)) return RealText(*real, column);
  if (const auto* integer = std::get_if<int64_t>(&cell)) return Thousands(*integer);
  return "";
}

bool HasText(const Table& table, size_t column) {
  for (const std::vector<Cell>& row : table.rows) {
    if (column < row.size() && std::holds_alternative<std::string>(row[column])) return true;
  }
  return false;
}

std::string Header(const Table& table, const std::vector<bool>& is_text) {
  std::string html = "<thead><tr>";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const Column& column = table.columns[i];
    absl::StrAppend(&html, "<th scope=\"col\"", is_text[i] ? " class=\"text\"" : "", ">",
                    Escape(column.name));
    if (!column.unit.empty())
      absl::StrAppend(&html, " <span class=\"unit\">[", Escape(column.unit), "]</span>");
    absl::StrAppend(&html, "</th>");
  }
  return html + "</tr></thead>\n";
}

std::string Row(const Table& table, const std::vector<Cell>& row, const std::vector<bool>& is_text) {
  std::string html = "<tr>";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const absl::string_view tag = i == 0 && is_text[i] ? "th" : "td";
    absl::StrAppend(&html, "<", tag, tag == "th" ? " scope=\"row\"" : "",
                    is_text[i] ? " class=\"text\">" : ">",
                    i < row.size() ? CellText(row[i], table.columns[i]) : "", "</", tag, ">");
  }
  return html + "</tr>\n";
}

}  // namespace

std::string TableHtml(const Table& table) {
  std::vector<bool> is_text;
  for (size_t i = 0; i < table.columns.size(); ++i) is_text.push_back(HasText(table, i));
  const std::string title = Escape(table.title);
  std::string html = absl::StrCat("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"",
                                  title.empty() ? "Table" : title, "\">\n<table>\n");
  if (!title.empty()) absl::StrAppend(&html, "<caption>", title, "</caption>\n");
  absl::StrAppend(&html, Header(table, is_text), "<tbody>\n");
  for (const std::vector<Cell>& row : table.rows) absl::StrAppend(&html, Row(table, row, is_text));
  absl::StrAppend(&html, "</tbody>\n</table>\n</div>\n");
  if (!table.note.empty()) absl::StrAppend(&html, "<p class=\"note\">", Escape(table.note), "</p>\n");
  return html;
}

}  // namespace bfio::report
