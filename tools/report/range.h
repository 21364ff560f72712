// Which part of its axis a chart's data covers, and how values become positions.
//
// Threads: pure functions and values.
#ifndef BFIO_TOOLS_REPORT_RANGE_H_
#define BFIO_TOOLS_REPORT_RANGE_H_

#include "tools/report/chart.h"

namespace bfio::report {

struct Range {
  double lo = 0;
  double hi = 1;
};

// Finite, and positive where the axis is logarithmic.
bool Drawable(const Axis& axis, double value);

// True for a fixed end that can be used: finite, positive on log axes, and not at or beyond the other one.
bool HasFixedMin(const Axis& axis);
bool HasFixedMax(const Axis& axis);

// lo < hi always: fixed ends as they are, otherwise the ends of what is drawn (on y, reference lines and
// error bars too; bars stand on zero). A range of one value is widened, and one that begins near zero begins
// at zero.
Range XRange(const Chart& chart);
Range YRange(const Chart& chart);

// Maps [range.lo, range.hi] to [from, to], in SVG user units. Values far outside end at a bounded distance.
// REQUIRES: range.lo < range.hi, and 0 < range.lo if log; Map's values are Drawable.
class Scale {
 public:
  Scale(const Range& range, bool log, double from, double to);
  double Map(double value) const;

 private:
  double Position(double value) const;

  bool log_;
  double lo_, hi_;
  double from_, to_;
};

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_RANGE_H_
