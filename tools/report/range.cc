#include "tools/report/range.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace bfio::report {
namespace {

// Beyond these, sums and differences of an axis's own ends would overflow or vanish.
constexpr double kHuge = 5e307;
constexpr double kTiny = 1e-300;
// A span this small beside the values themselves is rounding, not variation.
constexpr double kConstant = 1e-12;
// An axis of positive values begins at zero if the lowest is at most this share of the highest.
constexpr double kNearZeroX = 0.1;
constexpr double kNearZeroY = 0.5;
// On a log axis the shortest bar still has a length: bars stand on this share of the lowest value.
constexpr double kLogBarFoot = 1.0 / 3;
// Off-plot positions are cut off by the clip path anyhow; far away they would only lengthen the file.
constexpr double kFar = 20000;

class Extent {
 public:
  explicit Extent(const Axis& axis) : axis_(axis) {}
  void Add(double value) {
    if (!Drawable(axis_, value)) return;
    lo_ = std::min(lo_, value);
    hi_ = std::max(hi_, value);
  }
  bool empty() const { return lo_ > hi_; }
  double lo() const { return lo_; }
  double hi() const { return hi_; }

 private:
  const Axis& axis_;
  double lo_ = std::numeric_limits<double>::infinity();
  double hi_ = -std::numeric_limits<double>::infinity();
};

bool Usable(const Axis& axis, const std::optional<double>& end) {
  return end.has_value() && Drawable(axis, *end) && std::abs(*end) <= kHuge;
}

bool EndsCross(const Axis& axis) {
  if (!Usable(axis, axis.min) || !Usable(axis, axis.max)) return false;
  const double size = std::max(std::abs(*axis.min), std::abs(*axis.max));
  return *axis.max - *axis.min <= std::max(kConstant * size, kTiny);
}

void ClampTo(double smallest, double largest, Range* range) {
  range->lo = std::clamp(range->lo, smallest, largest);
  range->hi = std::clamp(range->hi, smallest, largest);
}

// Moves the ends that are not fixed until there is something between them.
void Widen(const Axis& axis, Range* range) {
  const double size = std::max(std::abs(range->lo), std::abs(range->hi));
  if (range->hi - range->lo > kConstant * size && range->hi - range->lo > kTiny) return;
  const double centre = range->lo;
  const double half = axis.log || size > kTiny ? size / 2 : 1;
  if (!HasFixedMin(axis) && (size > kTiny || HasFixedMax(axis))) range->lo = centre - half;
  if (!HasFixedMax(axis)) range->hi = centre + half;
}

// `near_zero`: the share of the highest value up to which the lowest counts as near zero.
Range Finish(const Axis& axis, const Extent& extent, double near_zero, bool bars) {
  Range range = axis.log ? Range{1, 10} : Range{0, 1};
  if (!extent.empty()) range = {extent.lo(), extent.hi()};
  if (axis.log) {
    if (bars) range.lo *= kLogBarFoot;
    ClampTo(kTiny, kHuge, &range);
  } else {
    ClampTo(-kHuge, kHuge, &range);
    const bool near = range.lo > 0 && range.lo <= near_zero * range.hi;
    if (bars || (near && !HasFixedMin(axis))) range = {std::min(range.lo, 0.0), std::max(range.hi, 0.0)};
  }
  if (HasFixedMin(axis)) range.lo = *axis.min;
  if (HasFixedMax(axis)) range.hi = *axis.max;
  // All data on the far side of the one fixed end.
  if (range.lo > range.hi)
    (HasFixedMin(axis) ? range.hi : range.lo) = HasFixedMin(axis) ? range.lo : range.hi;
  Widen(axis, &range);
  return range;
}

// Is a point at this x within the part of the x axis that is shown?
bool Shown(const Axis& x, double value) {
  return Drawable(x, value) && !(HasFixedMin(x) && value < *x.min) && !(HasFixedMax(x) && value > *x.max);
}

}  // namespace

bool Drawable(const Axis& axis, double value) {
  return std::isfinite(value) && (!axis.log || value > 0);
}

bool HasFixedMin(const Axis& axis) {
  return Usable(axis, axis.min) && !EndsCross(axis);
}
bool HasFixedMax(const Axis& axis) {
  return Usable(axis, axis.max) && !EndsCross(axis);
}

Range XRange(const Chart& chart) {
  Extent extent(chart.x);
  for (const Series& series : chart.series) {
    for (size_t i = 0; i < std::min(series.x.size(), series.y.size()); ++i) {
      if (Drawable(chart.y, series.y[i])) extent.Add(series.x[i]);
    }
  }
  return Finish(chart.x, extent, kNearZeroX, false);
}

Range YRange(const Chart& chart) {
  const bool bars = chart.kind == Chart::Kind::kBars;
  Extent extent(chart.y);
  for (const Series& series : chart.series) {
    const size_t count = bars ? series.y.size() : std::min(series.x.size(), series.y.size());
    for (size_t i = 0; i < count; ++i) {
      if (!bars && !Shown(chart.x, series.x[i])) continue;
      extent.Add(series.y[i]);
      if (i < series.low.size() && i < series.high.size()) {
        extent.Add(series.low[i]);
        extent.Add(series.high[i]);
      }
    }
  }
  for (const ReferenceLine& reference : chart.references) extent.Add(reference.y);
  return Finish(chart.y, extent, kNearZeroY, bars);
}

Scale::Scale(const Range& range, bool log, double from, double to) : log_(log), from_(from), to_(to) {
  lo_ = Position(range.lo);
  hi_ = Position(range.hi);
}

double Scale::Position(double value) const {
  return log_ ? std::log10(value) : value / 2;
}

double Scale::Map(double value) const {
  const double position = from_ + (to_ - from_) * ((Position(value) - lo_) / (hi_ - lo_));
  return std::clamp(position, -kFar, kFar);
}

}  // namespace bfio::report
