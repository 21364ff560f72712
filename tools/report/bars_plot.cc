#include "tools/report/bars_plot.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tools/report/categories.h"
#include "tools/report/markup.h"
#include "tools/report/numbers.h"
#include "tools/report/path.h"

namespace bfio::report {
namespace {

constexpr double kGroupShare = 0.76;  // of a category's slot
constexpr double kWidestBar = 44;
constexpr double kGapShare = 0.08;  // of a bar, to its neighbour
constexpr double kWidestCap = 5;    // half of an error bar's
constexpr int kTooltipDigits = 4;

struct Place {
  double left;
  double width;
};

Place PlaceOf(const Category& category, size_t bar, size_t bars) {
  const double slot = category.right - category.left;
  const auto count = static_cast<double>(bars);
  const double step = std::min(kWidestBar, slot * kGroupShare / count);
  const double left = (category.left + category.right - step * count) / 2 + step * static_cast<double>(bar);
  const double gap = bars > 1 ? step * kGapShare : 0;
  return {left + gap / 2, step - gap};
}

std::string Bar(const Chart& chart, const Series& series, size_t category, const Appearance& appearance,
                const Place& place, const Layout& layout) {
  const double foot = chart.y.log ? layout.bottom : std::clamp(layout.y.Map(0), layout.top, layout.bottom);
  const double end = layout.y.Map(series.y[category]);
  const std::string name = series.name.empty() ? "" : absl::StrCat(series.name, ", ");
  const std::string unit = chart.y.unit.empty() ? "" : absl::StrCat(" ", chart.y.unit);
  const std::string tooltip = absl::StrCat(name, CategoryName(chart, category), ": ",
                                           Significant(series.y[category], kTooltipDigits), unit);
  return absl::StrCat("<rect class=\"bar ", appearance.Classes(), "\" x=\"", Coordinate(place.left),
                      "\" y=\"", Coordinate(std::min(foot, end)), "\" width=\"", Coordinate(place.width),
                      "\" height=\"", Coordinate(std::abs(end - foot)), "\"><title>", Escape(tooltip),
                      "</title></rect>\n");
}

std::string ErrorBar(double centre, double cap, double low, double high) {
  return absl::StrCat(VerticalStroke(centre, low, high), HorizontalStroke(low, centre - cap, centre + cap),
                      HorizontalStroke(high, centre - cap, centre + cap));
}

}  // namespace

std::string BarsPlot(const Chart& chart, const Appearances& appearances, const Layout& layout) {
  std::string bars;
  std::string errors;
  for (size_t s = 0; s < chart.series.size(); ++s) {
    const Series& series = chart.series[s];
    for (size_t i = 0; i < std::min(layout.categories.size(), series.y.size()); ++i) {
      if (!Drawable(chart.y, series.y[i])) continue;
      const Place place = PlaceOf(layout.categories[i], s, chart.series.size());
      absl::StrAppend(&bars, Bar(chart, series, i, appearances.of_series[s], place, layout));
      if (i >= series.low.size() || i >= series.high.size()) continue;
      if (!Drawable(chart.y, series.low[i]) || !Drawable(chart.y, series.high[i])) continue;
      const double cap = std::min(kWidestCap, place.width / 3);
      absl::StrAppend(&errors, ErrorBar(place.left + place.width / 2, cap, layout.y.Map(series.low[i]),
                                        layout.y.Map(series.high[i])));
    }
  }
  if (!errors.empty()) {
    // A rim in the colour of the page: dark on dark bars would not be seen.
    absl::StrAppend(&bars, "<path class=\"rim\" d=\"", errors, "\"/>\n");
    absl::StrAppend(&bars, "<path class=\"error\" d=\"", errors, "\"/>\n");
  }
  return bars;
}

}  // namespace bfio::report
