#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tools/report/numbers.h"
#include "tools/report/ticks.h"

namespace bfio::report {
namespace {

constexpr int kMaxDecimalsOfScaled = 3;

// The smallest 1, 2 or 5 times a power of ten that is at least `raw`.
double NiceStep(double raw) {
  const double power = std::pow(10.0, Exponent(raw));
  for (const double mantissa : {1.0, 2.0, 5.0}) {
    if (mantissa * power >= raw * (1 - kTickSlack)) return mantissa * power;
  }
  return 10 * power;
}

// Writes the labels of one axis: all with the same decimals and the same scale.
class Labels {
 public:
  Labels(double largest, double step) : step_exponent_(Exponent(step)) {
    static constexpr const char* kPrefixes[] = {"M", "G", "T", "P", "E"};
    const int exponent = largest > 0 ? Exponent(largest) : 0;
    if (exponent >= 6 && exponent <= 20) {
      const int prefix = std::min(exponent, 18) / 3 - 2;
      const int scale = 3 * (prefix + 2);
      if (scale - step_exponent_ <= kMaxDecimalsOfScaled) {
        scale_ = scale;
        suffix_ = absl::StrCat(" ", kPrefixes[prefix]);
      }
    } else if (exponent > 20 || exponent < -4) {
      scale_ = exponent;
      scientific_ = true;
    }
  }

  std::string Of(double value) const {
    if (value == 0) return "0";
    const int decimals = std::max(0, scale_ - step_exponent_);
    // In two divisions: 10^-scale may be out of range where the quotient is not.
    const double scaled = value / std::pow(10.0, scale_ / 2) / std::pow(10.0, scale_ - scale_ / 2);
    if (scientific_) return Scientific(scaled, decimals, scale_);
    return absl::StrCat(Fixed(scaled, decimals), suffix_);
  }

 private:
  int step_exponent_;
  int scale_ = 0;  // power of ten the labels are divided by
  bool scientific_ = false;
  std::string suffix_;
};

}  // namespace

Ticks LinearTicks(const Range& range, int target, Rounding rounding) {
  // Divided before subtracting: the span of huge values may overflow.
  const double step = NiceStep(range.hi / target - range.lo / target);
  const double low = range.lo / step;
  const double high = range.hi / step;
  const double first = rounding.low ? std::floor(low + kTickSlack) : std::ceil(low - kTickSlack);
  const double last = rounding.high ? std::ceil(high - kTickSlack) : std::floor(high + kTickSlack);
  const Labels labels(std::max(std::abs(first * step), std::abs(last * step)), step);

  Ticks ticks{.range = range};
  if (rounding.low) ticks.range.lo = std::min(range.lo, first * step);
  if (rounding.high) ticks.range.hi = std::max(range.hi, last * step);
  const int count = static_cast<int>(last - first) + 1;
  for (int i = 0; i < count; ++i) {
    const double value = (first + i) * step;
    ticks.major.push_back({value, labels.Of(value)});
  }
  return ticks;
}

}  // namespace bfio::report
