// A table of measured values, and its CSV form.
//
// Purpose: one table feeds both the page and the CSV file beside it, so that the two cannot disagree.
// Threads: plain values, no locks; Csv is a pure function.
#ifndef BFIO_TOOLS_REPORT_TABLE_H_
#define BFIO_TOOLS_REPORT_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace bfio::report {

struct Column {
  std::string name;
  std::string unit;  // empty: none
  int digits = 3;    // significant digits of doubles on the page; CSV always has them all
  // Instead of them, so many digits behind the point.
  std::optional<int> decimals = std::nullopt;
};

// monostate: empty. A double that is not finite is shown as empty too.
using Cell = std::variant<std::monostate, std::string, double, int64_t>;

struct Table {
  std::string title;
  std::string note;  // a sentence below the table; may be empty
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // missing cells count as empty, surplus cells are ignored
};

// RFC 4180 with \n as line end: one header line "name [unit]", then the rows. Doubles have the digits that
// give the same double back.
std::string Csv(const Table& table);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_TABLE_H_
