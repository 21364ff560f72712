// Numbers as text: the same in every locale, the same bytes on every run.
//
// Threads: pure functions.
#ifndef BFIO_TOOLS_REPORT_NUMBERS_H_
#define BFIO_TOOLS_REPORT_NUMBERS_H_

#include <cstdint>
#include <string>

namespace bfio::report {

// The shortest text that reads back as the same double; empty for NaN and infinities.
std::string FullPrecision(double value);

// `value` rounded to `digits` significant digits for people: 12,346 or 0.000321 or 1.23×10⁹; trailing zeros
// are kept, since they are digits too. Never fewer digits than the integer part has, up to 10^15. Empty if
// not finite.
std::string Significant(double value, int digits);

// `value` with exactly `decimals` digits behind the point and commas between thousands.
std::string Fixed(double value, int decimals);

// 12,346.
std::string Thousands(int64_t value);

// "10⁶", "-2×10⁹": mantissa times a power of ten, for numbers too long to write out.
std::string Scientific(double mantissa, int decimals, int exponent);

// The power of ten of the leading digit. REQUIRES: value is finite and not 0.
int Exponent(double value);

// A position in SVG user units, rounded to a tenth, without needless zeros: "12", "12.5", "-0.5".
std::string Coordinate(double value);

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_NUMBERS_H_
