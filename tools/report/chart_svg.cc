#include "tools/report/chart_svg.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/report/bars_plot.h"
#include "tools/report/frame.h"
#include "tools/report/lines_plot.h"
#include "tools/report/markup.h"
#include "tools/report/numbers.h"

namespace bfio::report {
namespace {

constexpr size_t kMostNames = 8;
constexpr int kSpokenDigits = 4;
// Dots and lines on the edge of the plot keep their full width.
constexpr double kClipMargin = 3.5;

bool HasData(const Chart& chart) {
  for (const Series& series : chart.series) {
    const bool bars = chart.kind == Chart::Kind::kBars;
    const size_t count = bars ? series.y.size() : std::min(series.x.size(), series.y.size());
    for (size_t i = 0; i < count; ++i) {
      if (Drawable(chart.y, series.y[i]) && (bars || Drawable(chart.x, series.x[i]))) return true;
    }
  }
  return false;
}

std::string Extremes(const Chart& chart) {
  double lowest = std::numeric_limits<double>::infinity();
  double highest = -lowest;
  for (const Series& series : chart.series) {
    for (const double y : series.y) {
      if (!Drawable(chart.y, y)) continue;
      lowest = std::min(lowest, y);
      highest = std::max(highest, y);
    }
  }
  const std::string unit = chart.y.unit.empty() ? "" : absl::StrCat(" ", chart.y.unit);
  return absl::StrCat("Values from ", Significant(lowest, kSpokenDigits), " to ",
                      Significant(highest, kSpokenDigits), unit, ".");
}

std::string ClipPath(const Layout& layout, absl::string_view id) {
  return absl::StrCat("<clipPath id=\"", id, "\"><rect x=\"", Coordinate(layout.left - kClipMargin),
                      "\" y=\"", Coordinate(layout.top - kClipMargin), "\" width=\"",
                      Coordinate(layout.right - layout.left + 2 * kClipMargin), "\" height=\"",
                      Coordinate(layout.bottom - layout.top + 2 * kClipMargin), "\"/></clipPath>\n");
}

std::string NoData(const Layout& layout) {
  return absl::StrCat("<text class=\"no-data\" x=\"", Coordinate((layout.left + layout.right) / 2), "\" y=\"",
                      Coordinate((layout.top + layout.bottom) / 2), "\">no data</text>\n");
}

}  // namespace

std::string Description(const Chart& chart) {
  const bool bars = chart.kind == Chart::Kind::kBars;
  std::string text = absl::StrCat(
      bars ? "Bar chart" : "Line chart", " of ", WithUnit(chart.y.label, chart.y.unit),
      chart.y.log ? " on a logarithmic scale" : "", " over ", WithUnit(chart.x.label, chart.x.unit),
      chart.x.log && !bars ? " on a logarithmic scale" : "", ". ");
  if (!HasData(chart)) return text + "No data.";
  absl::StrAppend(&text, chart.series.size(), " series: ");
  for (size_t i = 0; i < std::min(kMostNames, chart.series.size()); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", chart.series[i].name);
  }
  if (chart.series.size() > kMostNames)
    absl::StrAppend(&text, " and ", chart.series.size() - kMostNames, " more");
  return absl::StrCat(text, ". ", Extremes(chart));
}

std::string ChartSvg(const Chart& chart, const Appearances& appearances, const Size& size,
                     absl::string_view id, absl::string_view css_class) {
  const Layout layout = MakeLayout(chart, size);
  const bool bars = chart.kind == Chart::Kind::kBars;
  return absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"", css_class, "\" viewBox=\"0 0 ",
      Coordinate(size.width), " ", Coordinate(size.height), "\" role=\"img\" aria-labelledby=\"", id,
      "-title ", id, "-desc\">\n<title id=\"", id, "-title\">", Escape(chart.title), "</title>\n<desc id=\"",
      id, "-desc\">", Escape(Description(chart)), "</desc>\n", ClipPath(layout, absl::StrCat(id, "-clip")),
      Grid(chart, layout), "<g clip-path=\"url(#", id, "-clip)\">\n",
      bars ? BarsPlot(chart, appearances, layout) : LinesPlot(chart, appearances, layout), "</g>\n",
      HasData(chart) ? "" : NoData(layout), References(chart, layout), Axes(chart, layout), "</svg>\n");
}

}  // namespace bfio::report
