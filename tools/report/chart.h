// What a chart shows, as plain data: series over one x and one y axis, or grouped bars over named categories.
//
// Purpose: the vocabulary between a program that measured something and the page that draws it. No pixels, no
// colours here. Values are in the unit of their axis. Threads: plain values, no locks; share them as const.
#ifndef BFIO_TOOLS_REPORT_CHART_H_
#define BFIO_TOOLS_REPORT_CHART_H_

#include <optional>
#include <string>
#include <vector>

namespace bfio::report {

struct Axis {
  std::string label;
  std::string unit;  // empty: a pure number; the axis then shows the label alone
  bool log = false;  // values <= 0 are then left out, like NaN
  // Fixed ends of the axis; unset: from the data, rounded outward to a tick. What lies beyond is cut off.
  std::optional<double> min, max;
  std::vector<std::string> categories;  // bars: one group of bars each; used on the x axis only
};

// One line, cloud of points or, in a kBars chart, one bar per category. Points whose x or y is not finite
// leave a gap. Surplus entries of the longer of x and y are ignored.
struct Series {
  enum class Style { kLine, kDashed, kPoints, kSteps };

  std::string name;
  std::vector<double> x, y;  // kBars: y[i] belongs to categories[i], x is not read
  // Both empty, or as long as y: a band around a line, error bars at points and bars. Values on y's scale
  // (the ends of the interval, not distances from y).
  std::vector<double> low, high;
  Style style = Style::kLine;  // kSteps holds y[i] from x[i] to x[i + 1]; bars do not read it
  bool strong = false;         // drawn thicker, on top, and always named in the legend; bars get an outline
};

// A horizontal line across the plot, e.g. a published value to compare with.
struct ReferenceLine {
  std::string name;
  double y = 0;
};

struct Chart {
  enum class Kind { kLines, kBars };

  std::string title;
  std::string note;  // a sentence below the chart: what was run, what to look at
  Kind kind = Kind::kLines;
  Axis x, y;
  std::vector<Series> series;
  std::vector<ReferenceLine> references;
};

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_CHART_H_
