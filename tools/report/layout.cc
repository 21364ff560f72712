#include "tools/report/layout.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tools/report/markup.h"

namespace bfio::report {
namespace {

constexpr double kTickGap = 8;    // between a tick label and its axis
constexpr double kLabelGap = 14;  // between neighbouring labels
constexpr double kMargin = 4;     // around everything
constexpr double kMinLeft = 30;
constexpr double kPixelsPerYTick = 55;
constexpr double kPixelsPerXTick = 75;
constexpr double kRoundingBlank = 0.06;  // of an x axis that rounding outward may leave blank at each end
constexpr double kSlant = 0.5;           // sine and cosine of the 30 degrees of slanted labels
constexpr double kSlantCosine = 0.87;
constexpr size_t kLongestLabel = 26;  // characters
constexpr size_t kMostLabelLines = 3;

Rounding Free(const Axis& axis) {
  return {!HasFixedMin(axis), !HasFixedMax(axis)};
}

Ticks MakeTicks(const Axis& axis, const Range& range, int target, Rounding rounding) {
  return axis.log ? LogTicks(range, target, rounding) : LinearTicks(range, target, rounding);
}

bool LabelsFit(const std::vector<Tick>& ticks, const Scale& scale) {
  double end = -1e9;
  for (const Tick& tick : ticks) {
    const double half = TextWidth(tick.label, kFontSize) / 2;
    const double centre = scale.Map(tick.value);
    if (centre - half < end + kLabelGap) return false;
    end = centre + half;
  }
  return true;
}

// As many ticks as there is room for. An end moves out to a round number only where that leaves little blank.
Ticks XTicks(const Axis& axis, const Range& range, double left, double right) {
  Ticks ticks;
  for (int target = std::max(2, static_cast<int>((right - left) / kPixelsPerXTick)); target >= 2; --target) {
    Rounding rounding = Free(axis);
    const Ticks outward = MakeTicks(axis, range, target, rounding);
    const Scale scale(outward.range, axis.log, 0, 1);
    rounding.low = rounding.low && scale.Map(range.lo) <= kRoundingBlank;
    rounding.high = rounding.high && scale.Map(range.hi) >= 1 - kRoundingBlank;
    ticks = MakeTicks(axis, range, target, rounding);
    if (LabelsFit(ticks.major, Scale(ticks.range, axis.log, left, right))) return ticks;
  }
  // Not even two fit: the first one alone says where we are.
  if (ticks.major.size() > 1) ticks.major.resize(1);
  return ticks;
}

double WidestLabel(const Ticks& ticks) {
  double widest = 0;
  for (const Tick& tick : ticks.major) widest = std::max(widest, TextWidth(tick.label, kFontSize));
  return widest;
}

void PlaceCategories(size_t count, Layout* layout) {
  const double slot = (layout->right - layout->left) / static_cast<double>(count);
  layout->categories.resize(count);
  for (size_t i = 0; i < count; ++i) {
    layout->categories[i].left = layout->left + slot * static_cast<double>(i);
    layout->categories[i].right = layout->left + slot * static_cast<double>(i + 1);
  }
}

// Fills in labels, upright in lines if they fit their slots, else slanted. Returns the height they take.
double LabelCategories(const Chart& chart, Layout* layout) {
  const double slot = (layout->right - layout->left) / static_cast<double>(layout->categories.size());
  bool fits = true;
  size_t most_lines = 1;
  for (size_t i = 0; i < layout->categories.size(); ++i) {
    std::vector<std::string>& lines = layout->categories[i].lines;
    lines = WrapText(CategoryName(chart, i), slot - 6, kFontSize);
    most_lines = std::max(most_lines, lines.size());
    for (const std::string& line : lines) fits = fits && TextWidth(line, kFontSize) <= slot - 4;
  }
  if (fits && most_lines <= kMostLabelLines) return static_cast<double>(most_lines) * kLineHeight;

  layout->slanted = true;
  const auto stride = static_cast<size_t>(std::max(1.0, std::ceil(1.3 * kLineHeight / slot)));
  double widest = 0;
  for (size_t i = 0; i < layout->categories.size(); ++i) {
    std::vector<std::string>& lines = layout->categories[i].lines;
    lines.clear();
    if (i % stride != 0) continue;
    lines.push_back(Shortened(CategoryName(chart, i), kLongestLabel));
    const double width = TextWidth(lines[0], kFontSize);
    widest = std::max(widest, width);
    // Slanted labels end below their group; the first ones reach left of the axis.
    const double reach = width * kSlantCosine + kMargin - slot * (static_cast<double>(i) + 0.5);
    layout->left = std::max(layout->left, reach);
  }
  PlaceCategories(layout->categories.size(), layout);
  return kLineHeight + widest * kSlant;
}

}  // namespace

size_t CategoryCount(const Chart& chart) {
  if (!chart.x.categories.empty()) return chart.x.categories.size();
  size_t count = 0;
  for (const Series& series : chart.series) count = std::max(count, series.y.size());
  return count;
}

std::string CategoryName(const Chart& chart, size_t index) {
  return index < chart.x.categories.size() ? chart.x.categories[index] : absl::StrCat(index + 1);
}

Layout MakeLayout(const Chart& chart, const Size& size) {
  Layout layout{
      .size = size,
      .left = kMinLeft,
      .top = 0,
      .right = size.width - kMargin,
      .bottom = 0,
      .x_title_y = size.height - kMargin,
      .x_title = WrapText(WithUnit(chart.x.label, chart.x.unit), size.width - 2 * kMargin, kFontSize),
      .y_title = WrapText(WithUnit(chart.y.label, chart.y.unit), size.width - 2 * kMargin, kFontSize),
      .x = Scale({0, 1}, false, 0, 1),
      .y = Scale({0, 1}, false, 0, 1)};
  layout.top = kMargin + kLineHeight * static_cast<double>(layout.y_title.size()) + kTickGap;
  const double title_height = kLineHeight * static_cast<double>(layout.x_title.size()) + kMargin + 4;

  const int y_target = std::max(2, static_cast<int>((size.height - layout.top - 45) / kPixelsPerYTick));
  layout.y_ticks = MakeTicks(chart.y, YRange(chart), y_target, Free(chart.y));
  layout.left = std::max(kMinLeft, WidestLabel(layout.y_ticks) + kTickGap + kMargin);

  double label_height = kLineHeight;
  if (chart.kind == Chart::Kind::kBars) {
    const size_t count = CategoryCount(chart);
    if (count > 0) {
      PlaceCategories(count, &layout);
      label_height = LabelCategories(chart, &layout);
    }
  } else {
    layout.x_ticks = XTicks(chart.x, XRange(chart), layout.left, layout.right);
    if (!layout.x_ticks.major.empty()) {
      // Half of the last label may stand out on the right.
      const Scale scale(layout.x_ticks.range, chart.x.log, layout.left, layout.right);
      const Tick& last = layout.x_ticks.major.back();
      const double end = scale.Map(last.value) + TextWidth(last.label, kFontSize) / 2;
      layout.right -= std::max(0.0, end - layout.right);
    }
    layout.x = Scale(layout.x_ticks.range, chart.x.log, layout.left, layout.right);
  }
  layout.bottom = size.height - title_height - label_height - kTickGap;
  layout.bottom = std::max(layout.bottom, layout.top + 40);
  layout.y = Scale(layout.y_ticks.range, chart.y.log, layout.bottom, layout.top);
  return layout;
}

}  // namespace bfio::report
