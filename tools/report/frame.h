// The fixed parts of a drawing: grid, axes, ticks, titles, reference lines.
//
// Threads: pure functions that return SVG markup. Looks are CSS classes of style.cc.
#ifndef BFIO_TOOLS_REPORT_FRAME_H_
#define BFIO_TOOLS_REPORT_FRAME_H_

#include <string>

#include "tools/report/chart.h"
#include "tools/report/layout.h"

namespace bfio::report {

// Drawn below the data.
std::string Grid(const Chart& chart, const Layout& layout);

// Drawn above the data: axes, labels, titles.
std::string Axes(const Chart& chart, const Layout& layout);

// Drawn above the data, with names and values at the right end; those of bar charts are in the legend.
std::string References(const Chart& chart, const Layout& layout);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_FRAME_H_
