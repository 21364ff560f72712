#include "tools/report/layout.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <utility>

#include "tools/report/categories.h"
#include "tools/report/markup.h"
#include "tools/report/numbers.h"

namespace bfio::report {
namespace {

constexpr double kTickGap = 8;    // between a tick label and its axis
constexpr double kLabelGap = 14;  // between neighbouring labels
constexpr double kMargin = 4;     // around everything
constexpr size_t kMostMeasuredTicks = 12;
constexpr double kMinLeft = 30;
constexpr double kPixelsPerYTick = 52;
constexpr double kFewestPixelsPerYTick = 28;
constexpr double kPixelsPerXTick = 75;
constexpr double kPixelsPerLogTick = 32;  // decades may lie closer: their grid shows what is between
constexpr double kTitleGap = 14;          // between the title of the y axis and the plot
constexpr double kRoundingBlank = 0.06;   // of an x axis that rounding outward may leave blank at each end

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

// A sweep over few values, say 4, 8, 16 workers: on a log axis these are the ticks to have. Empty if there
// are many, or if they are no whole numbers.
std::vector<Tick> MeasuredTicks(const Chart& chart) {
  std::set<double> values;
  for (const Series& series : chart.series) {
    for (const double x : series.x) {
      if (!Drawable(chart.x, x)) continue;
      if (x != std::floor(x) || x >= 1e6) return {};
      values.insert(x);
      if (values.size() > kMostMeasuredTicks) return {};
    }
  }
  std::vector<Tick> ticks;
  for (const double x : values) {
    if (HasFixedMin(chart.x) && x < *chart.x.min) continue;
    if (HasFixedMax(chart.x) && x > *chart.x.max) continue;
    ticks.push_back({x, Fixed(x, 0)});
  }
  return ticks.size() < 2 ? std::vector<Tick>() : ticks;
}

// Are all x values whole? Then ticks between them would name steps or workers that are none.
bool XIsWhole(const Chart& chart) {
  return std::all_of(chart.series.begin(), chart.series.end(), [](const Series& series) {
    return std::all_of(series.x.begin(), series.x.end(), [](double x) { return x == std::floor(x); });
  });
}

// As many ticks as there is room for. An end moves out to a round number only where that leaves little blank.
Ticks XTicks(const Chart& chart, double left, double right) {
  const Axis& axis = chart.x;
  const Range range = XRange(chart);
  if (axis.log) {
    const std::vector<Tick> measured = MeasuredTicks(chart);
    const bool fit = LabelsFit(measured, Scale(range, true, left, right));
    if (!measured.empty() && fit) return {.range = range, .major = measured};
  }
  Ticks ticks;
  const bool whole = !axis.log && XIsWhole(chart);
  const double pixels = axis.log ? kPixelsPerLogTick : kPixelsPerXTick;
  for (int target = std::max(2, static_cast<int>((right - left) / pixels)); target >= 2; --target) {
    Rounding rounding = Free(axis);
    const Ticks outward = MakeTicks(axis, range, target, rounding);
    const Scale scale(outward.range, axis.log, 0, 1);
    rounding.low = rounding.low && scale.Map(range.lo) <= kRoundingBlank;
    rounding.high = rounding.high && scale.Map(range.hi) >= 1 - kRoundingBlank;
    ticks = MakeTicks(axis, range, target, rounding);
    const bool between = ticks.major.size() > 1 && ticks.major[1].value - ticks.major[0].value < 1;
    if (whole && between && target > 2) continue;
    if (LabelsFit(ticks.major, Scale(ticks.range, axis.log, left, right))) return ticks;
  }
  // Not even two fit: the first one alone says where we are.
  if (ticks.major.size() > 1) ticks.major.resize(1);
  return ticks;
}

// Of several steps, the one that leaves little blank beyond the data with about as many ticks as look calm.
Ticks YTicks(const Axis& axis, const Range& range, double height) {
  constexpr double kCostPerTick = 0.025;  // of the axis's length
  const auto target_at = [&](double pixels) { return std::max(2, static_cast<int>(height / pixels)); };
  if (axis.log) return LogTicks(range, target_at(kPixelsPerLogTick), Free(axis));
  const int preferred = target_at(kPixelsPerYTick);
  const auto most = static_cast<size_t>(target_at(kFewestPixelsPerYTick) + 1);
  Ticks best;
  double best_cost = HUGE_VAL;
  for (int target = preferred - 1; target <= preferred + 4; ++target) {
    Ticks ticks = LinearTicks(range, std::max(2, target), Free(axis));
    const Scale scale(ticks.range, false, 0, 1);
    const double count_off = std::abs(static_cast<double>(ticks.major.size()) - 1 - preferred);
    const double cost = 1 - (scale.Map(range.hi) - scale.Map(range.lo)) + kCostPerTick * count_off;
    if (cost >= best_cost || (ticks.major.size() > most && best_cost < HUGE_VAL)) continue;
    best_cost = cost;
    best = std::move(ticks);
  }
  return best;
}

double WidestLabel(const Ticks& ticks) {
  double widest = 0;
  for (const Tick& tick : ticks.major) widest = std::max(widest, TextWidth(tick.label, kFontSize));
  return widest;
}

}  // namespace

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
  layout.top = kMargin + kLineHeight * static_cast<double>(layout.y_title.size()) + kTitleGap;
  const double title_height = kLineHeight * static_cast<double>(layout.x_title.size()) + kMargin + 4;

  layout.y_ticks = YTicks(chart.y, YRange(chart), size.height - layout.top - 45);
  layout.left = std::max(kMinLeft, WidestLabel(layout.y_ticks) + kTickGap + kMargin);

  double label_height = kLineHeight;
  if (chart.kind == Chart::Kind::kBars) {
    const size_t count = CategoryCount(chart);
    if (count > 0) {
      label_height = LayOutCategories(chart, count, &layout);
    }
  } else {
    layout.x_ticks = XTicks(chart, layout.left, layout.right);
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
