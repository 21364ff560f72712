// Tables as HTML.
//
// Threads: pure functions.
#ifndef BFIO_TOOLS_REPORT_TABLE_HTML_H_
#define BFIO_TOOLS_REPORT_TABLE_HTML_H_

#include <string>

#include "tools/report/table.h"

namespace bfio::report {

// In a region that scrolls sideways where it is wider than the page; keyboards reach it. Columns of numbers
// are aligned to the right, a first column of text names its row.
std::string TableHtml(const Table& table);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_TABLE_HTML_H_
