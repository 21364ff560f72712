#include "tools/report/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace bfio::report {
namespace {

// Beyond these powers of ten a plain decimal is harder to read than a power.
constexpr int kLargestPlainExponent = 8;
constexpr int kSmallestPlainExponent = -5;

std::string Superscript(int value) {
  static constexpr const char* kDigits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text;
  for (const char c : absl::StrCat(value)) text += c == '-' ? "⁻" : kDigits[c - '0'];
  return text;
}

// Commas between the thousands of the digits before the point.
std::string WithCommas(absl::string_view number) {
  const bool negative = !number.empty() && number.front() == '-';
  if (negative) number.remove_prefix(1);
  const size_t integer_digits = std::min(number.find('.'), number.size());
  std::string text = negative ? "-" : "";
  for (size_t i = 0; i < number.size(); ++i) {
    if (i > 0 && i < integer_digits && (integer_digits - i) % 3 == 0) text += ',';
    text += number[i];
  }
  return text;
}

bool IsZero(absl::string_view number) {
  return number.find_first_of("123456789") == absl::string_view::npos;
}

}  // namespace

std::string FullPrecision(double value) {
  if (!std::isfinite(value)) return "";
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value == 0 ? 0.0 : value);
  return std::string(buffer, result.ptr);
}

std::string Fixed(double value, int decimals) {
  std::string text = absl::StrFormat("%.*f", std::max(decimals, 0), value);
  if (text.front() == '-' && IsZero(text)) text.erase(0, 1);
  return WithCommas(text);
}

std::string Thousands(int64_t value) {
  return WithCommas(absl::StrCat(value));
}

std::string Scientific(double mantissa, int decimals, int exponent) {
  const std::string power = absl::StrCat("10", Superscript(exponent));
  if (decimals == 0 && mantissa == 1) return power;
  return absl::StrCat(Fixed(mantissa, decimals), "×", power);
}

int Exponent(double value) {
  // Through the decimal text, where 1e-6 is a power of ten; neither log10 nor all 17 digits of its double say
  // so.
  const std::string text = absl::StrFormat("%.14e", std::abs(value));
  return std::atoi(text.c_str() + text.find('e') + 1);
}

std::string Significant(double value, int digits) {
  if (!std::isfinite(value)) return "";
  if (value == 0) return "0";
  digits = std::clamp(digits, 1, 17);
  // Rounding may carry into a new digit (9.996 to 10.0), so the exponent comes from the rounded text.
  const std::string rounded = absl::StrFormat("%.*e", digits - 1, value);
  const size_t e = rounded.find('e');
  const int exponent = std::atoi(rounded.c_str() + e + 1);
  if (exponent > kLargestPlainExponent || exponent < kSmallestPlainExponent) {
    double mantissa = 0;
    (void)absl::SimpleAtod(absl::string_view(rounded).substr(0, e), &mantissa);
    return Scientific(mantissa, digits - 1, exponent);
  }
  return Fixed(value, digits - 1 - exponent);
}

std::string Coordinate(double value) {
  std::string text = absl::StrFormat("%.1f", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  if (text == "-0") return "0";
  return text;
}

}  // namespace bfio::report
