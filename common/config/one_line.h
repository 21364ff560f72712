// Helpers for messages that must stay on one line. Pure functions; any thread.
#ifndef BFIO_COMMON_CONFIG_ONE_LINE_H_
#define BFIO_COMMON_CONFIG_ONE_LINE_H_

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace bfio {

// Runs of line breaks and other control characters become one space; no leading or trailing space.
inline std::string OneLine(absl::string_view text) {
  std::string out;
  for (char c : text) {
    const bool control = absl::ascii_iscntrl(static_cast<unsigned char>(c));
    if (!control) out.push_back(c);
    if (control && !out.empty() && out.back() != ' ') out.push_back(' ');
  }
  absl::StripAsciiWhitespace(&out);
  return out;
}

// Decimal digits that parse to exactly this double.
inline std::string ExactDecimal(double value) {
  return absl::StrFormat("%.17g", value);
}

}  // namespace bfio

#endif  // BFIO_COMMON_CONFIG_ONE_LINE_H_
