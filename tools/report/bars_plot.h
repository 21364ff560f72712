// The data of a kBars chart as SVG: groups of bars with error bars.
//
// Threads: pure functions.
#ifndef BFIO_TOOLS_REPORT_BARS_PLOT_H_
#define BFIO_TOOLS_REPORT_BARS_PLOT_H_

#include <string>

#include "tools/report/appearance.h"
#include "tools/report/chart.h"
#include "tools/report/layout.h"

namespace bfio::report {

// Bars stand on zero, on log axes on the x axis. A value that cannot be drawn leaves its place empty.
std::string BarsPlot(const Chart& chart, const Appearances& appearances, const Layout& layout);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_BARS_PLOT_H_
