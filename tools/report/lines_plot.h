// The data of a kLines chart as SVG: bands, error bars, lines, points.
//
// Threads: pure functions.
#ifndef BFIO_TOOLS_REPORT_LINES_PLOT_H_
#define BFIO_TOOLS_REPORT_LINES_PLOT_H_

#include <string>

#include "tools/report/appearance.h"
#include "tools/report/chart.h"
#include "tools/report/layout.h"

namespace bfio::report {

// From the back to the front: bands, families, the other series, strong ones.
std::string LinesPlot(const Chart& chart, const Appearances& appearances, const Layout& layout);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_LINES_PLOT_H_
