// One drawing of a chart: a whole <svg> element.
//
// Threads: pure functions.
#ifndef BFIO_TOOLS_REPORT_CHART_SVG_H_
#define BFIO_TOOLS_REPORT_CHART_SVG_H_

#include <string>

#include "absl/strings/string_view.h"
#include "tools/report/appearance.h"
#include "tools/report/chart.h"
#include "tools/report/layout.h"

namespace bfio::report {

// `id` is unique in the page; `css_class` says at which widths the drawing is shown.
std::string ChartSvg(const Chart& chart, const Appearances& appearances, const Size& size,
                     absl::string_view id, absl::string_view css_class);

// What the chart shows, in a sentence or two, for those who do not see it.
std::string Description(const Chart& chart);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_CHART_SVG_H_
