#include <algorithm>
#include <cmath>
#include <vector>

#include "tools/report/numbers.h"
#include "tools/report/ticks.h"

namespace bfio::report {
namespace {

// Up to this many decades, 2 and 5 are labelled too; up to the next, 2 to 9 have a grid line.
constexpr double kDecadesWithTwoAndFive = 2.7;
constexpr double kDecadesWithMinor = 6;

double Power(int exponent) {
  return std::pow(10.0, exponent);
}

// The next 1, 2 or 5 times a power of ten, at or below and at or above.
double NiceBelow(double value) {
  const double power = Power(Exponent(value));
  for (const double mantissa : {5.0, 2.0}) {
    if (mantissa * power <= value * (1 + kTickSlack)) return mantissa * power;
  }
  return power;
}

double NiceAbove(double value) {
  const double power = Power(Exponent(value));
  for (const double mantissa : {1.0, 2.0, 5.0}) {
    if (mantissa * power >= value * (1 - kTickSlack)) return mantissa * power;
  }
  return 10 * power;
}

std::string Label(double mantissa, int exponent, bool plain) {
  return plain ? Fixed(mantissa * Power(exponent), std::max(0, -exponent))
               : Scientific(mantissa, 0, exponent);
}

}  // namespace

Ticks LogTicks(const Range& range, int target, Rounding rounding) {
  Ticks ticks{.range = range};
  if (rounding.low) ticks.range.lo = std::min(range.lo, NiceBelow(range.lo));
  if (rounding.high) ticks.range.hi = std::max(range.hi, NiceAbove(range.hi));
  const double lo = ticks.range.lo * (1 - kTickSlack);
  const double hi = ticks.range.hi * (1 + kTickSlack);
  const double decades = std::log10(hi) - std::log10(lo);
  const bool dense = decades <= kDecadesWithTwoAndFive && 3 * decades <= target + 1;
  const int stride = std::max(1, static_cast<int>(std::ceil(decades / target)));
  const int first = Exponent(lo);
  const int last = Exponent(hi);
  const bool plain = lo >= 0.001 * (1 - 2 * kTickSlack) && hi <= 1e6 * (1 + 2 * kTickSlack);

  for (int exponent = first; exponent <= last; ++exponent) {
    for (int mantissa = 1; mantissa <= 9; ++mantissa) {
      const double value = mantissa * Power(exponent);
      if (value < lo || value > hi) continue;
      const bool round = mantissa == 1 ? exponent % stride == 0 : dense && (mantissa == 2 || mantissa == 5);
      if (round) {
        ticks.major.push_back({value, Label(mantissa, exponent, plain)});
      } else if (stride == 1 && decades <= kDecadesWithMinor) {
        ticks.minor.push_back(value);
      }
    }
  }
  // Less than a decade between ends: evenly spaced values read better than one lonely power of ten.
  if (ticks.major.size() < 2) ticks.major = LinearTicks(ticks.range, target, {false, false}).major;
  return ticks;
}

}  // namespace bfio::report
