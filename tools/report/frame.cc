#include "tools/report/frame.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/report/appearance.h"
#include "tools/report/markup.h"
#include "tools/report/numbers.h"
#include "tools/report/path.h"

namespace bfio::report {
namespace {

constexpr double kTickLength = 4;
constexpr double kTickToLabel = 8;
constexpr double kBaselineShift = 4;      // from the middle of a digit to its baseline
constexpr size_t kLongestReference = 48;  // characters

std::string Path(absl::string_view classes, absl::string_view data) {
  return data.empty() ? "" : absl::StrCat("<path class=\"", classes, "\" d=\"", data, "\"/>\n");
}

std::string TextAt(absl::string_view classes, double x, double y, absl::string_view text) {
  return absl::StrCat("<text class=\"", classes, "\" x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\">",
                      Escape(text), "</text>\n");
}

// A title over one or more lines, as one text element.
std::string Title(const Axis& axis, absl::string_view which, double x, double first_y,
                  const std::vector<std::string>& lines) {
  const absl::string_view unitless = axis.unit.empty() ? " unitless" : "";
  if (lines.size() == 1) return TextAt(absl::StrCat("axis-title ", which, unitless), x, first_y, lines[0]);
  std::string text = absl::StrCat("<text class=\"axis-title ", which, unitless, "\">");
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&text, "<tspan x=\"", Coordinate(x), "\" y=\"",
                    Coordinate(first_y + kLineHeight * static_cast<double>(i)), "\">", Escape(lines[i]),
                    i + 1 < lines.size() ? " " : "", "</tspan>");
  }
  return text + "</text>\n";
}

std::string XLabels(const Layout& layout) {
  std::string svg;
  const double baseline = layout.bottom + kTickToLabel + kLineHeight - kBaselineShift;
  for (const Tick& tick : layout.x_ticks.major) {
    absl::StrAppend(&svg, TextAt("tick x", layout.x.Map(tick.value), baseline, tick.label));
  }
  for (const Category& category : layout.categories) {
    const double centre = (category.left + category.right) / 2;
    for (size_t i = 0; i < category.lines.size(); ++i) {
      if (layout.slanted) {
        absl::StrAppend(&svg, "<text class=\"tick slanted\" transform=\"translate(", Coordinate(centre + 4),
                        " ", Coordinate(layout.bottom + kTickToLabel + 6), ") rotate(-30)\">",
                        Escape(category.lines[i]), "</text>\n");
      } else {
        absl::StrAppend(&svg, TextAt("tick x", centre, baseline + kLineHeight * static_cast<double>(i),
                                     category.lines[i]));
      }
    }
  }
  return svg;
}

}  // namespace

std::string Grid(const Chart& chart, const Layout& layout) {
  std::string minor;
  std::string major;
  for (const double y : layout.y_ticks.minor) {
    absl::StrAppend(&minor, HorizontalStroke(layout.y.Map(y), layout.left, layout.right));
  }
  for (const double x : layout.x_ticks.minor) {
    absl::StrAppend(&minor, VerticalStroke(layout.x.Map(x), layout.top, layout.bottom));
  }
  for (const Tick& tick : layout.y_ticks.major) {
    absl::StrAppend(&major, HorizontalStroke(layout.y.Map(tick.value), layout.left, layout.right));
  }
  for (const Tick& tick : layout.x_ticks.major) {
    absl::StrAppend(&major, VerticalStroke(layout.x.Map(tick.value), layout.top, layout.bottom));
  }
  return absl::StrCat(Path("grid minor", minor), Path("grid", major));
}

std::string Axes(const Chart& chart, const Layout& layout) {
  std::string strokes = HorizontalStroke(layout.bottom, layout.left, layout.right);
  const Range& y_range = layout.y_ticks.range;
  if (!chart.y.log && y_range.lo < 0 && y_range.hi > 0) {
    absl::StrAppend(&strokes, HorizontalStroke(layout.y.Map(0), layout.left, layout.right));
  }
  for (const Tick& tick : layout.x_ticks.major) {
    absl::StrAppend(&strokes,
                    VerticalStroke(layout.x.Map(tick.value), layout.bottom, layout.bottom + kTickLength));
  }
  std::string svg = Path("axis", strokes);
  for (const Tick& tick : layout.y_ticks.major) {
    absl::StrAppend(&svg, TextAt("tick y", layout.left - kTickToLabel,
                                 layout.y.Map(tick.value) + kBaselineShift, tick.label));
  }
  absl::StrAppend(&svg, XLabels(layout));
  const double first_x_line = layout.x_title_y - kLineHeight * static_cast<double>(layout.x_title.size() - 1);
  absl::StrAppend(&svg, Title(chart.x, "x", (layout.left + layout.right) / 2, first_x_line, layout.x_title));
  absl::StrAppend(&svg, Title(chart.y, "y", 2, kLineHeight, layout.y_title));
  return svg;
}

std::string References(const Chart& chart, const Layout& layout) {
  std::vector<const ReferenceLine*> lines;
  for (const ReferenceLine& line : chart.references) {
    if (Drawable(chart.y, line.y)) lines.push_back(&line);
  }
  std::stable_sort(lines.begin(), lines.end(), [](const auto* a, const auto* b) { return a->y > b->y; });
  std::string strokes;
  std::string labels;
  double last_baseline = -1e9;
  for (const ReferenceLine* line : lines) {
    const double y = layout.y.Map(line->y);
    if (y < layout.top - 0.5 || y > layout.bottom + 0.5) continue;
    absl::StrAppend(&strokes, HorizontalStroke(y, layout.left, layout.right));
    if (chart.kind == Chart::Kind::kBars) continue;
    const std::string text = Shortened(ReferenceText(*line), kLongestReference);
    const double beside = y - 5 < layout.top + kFontSize ? y + kFontSize + 3 : y - 5;
    // Names of lines close together form a column, in the order of the lines.
    last_baseline = std::max(beside, last_baseline + kLineHeight);
    absl::StrAppend(&labels, TextAt("reference", layout.right - 4, last_baseline, text));
  }
  const std::string rim = chart.kind == Chart::Kind::kBars ? Path("rim", strokes) : "";
  return absl::StrCat(rim, Path("reference", strokes), labels);
}

}  // namespace bfio::report
