// Where an axis has its ticks and what they say.
//
// Purpose: round numbers (1, 2 or 5 times a power of ten) that cover the data. Threads: pure functions.
#ifndef BFIO_TOOLS_REPORT_TICKS_H_
#define BFIO_TOOLS_REPORT_TICKS_H_

#include <string>
#include <vector>

#include "tools/report/range.h"

namespace bfio::report {

// Ticks fall on multiples of the step; this forgives the rounding of value / step.
inline constexpr double kTickSlack = 1e-9;

struct Tick {
  double value;
  std::string label;
};

struct Ticks {
  Range range;  // the ends of the axis
  std::vector<Tick> major;
  std::vector<double> minor;  // grid lines without a label; log axes only
};

// May an end of the axis move outward to the next round number?
struct Rounding {
  bool low = true;
  bool high = true;
};

// About `target` ticks (>= 2), one step apart, in `range`. Labels have the decimals the step needs; from a
// million on they are scaled (2.5 M), and written as powers of ten where no such prefix is common. REQUIRES:
// range.lo < range.hi.
Ticks LinearTicks(const Range& range, int target, Rounding rounding);

// Decades, with 2 and 5 in between where the range is short, every n-th decade where it is long; 0.001 to
// 1,000,000 are written out, powers of ten otherwise. REQUIRES: 0 < range.lo < range.hi.
Ticks LogTicks(const Range& range, int target, Rounding rounding);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_TICKS_H_
