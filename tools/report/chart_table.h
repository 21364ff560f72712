// A chart's numbers as a table: for screen readers, for copying, and for looking up what a line is at a
// point.
//
// Threads: pure functions.
#ifndef BFIO_TOOLS_REPORT_CHART_TABLE_H_
#define BFIO_TOOLS_REPORT_CHART_TABLE_H_

#include "tools/report/chart.h"
#include "tools/report/table.h"

namespace bfio::report {

// Every value where there are few; otherwise one row of extremes and mean per series, as the title then says.
// Reference lines follow.
Table ChartTable(const Chart& chart);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_CHART_TABLE_H_
