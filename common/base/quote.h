// Quotes untrusted text in an error message. Gives one printable line of bounded length for any input.
// Threads: pure functions.
#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace bfio {

// 'text' in quotes, escaped, truncated to 120 bytes.
inline std::string Quote(absl::string_view text) {
  constexpr size_t kLongest = 120;
  if (text.size() <= kLongest) return absl::StrCat("'", absl::CHexEscape(text), "'");
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kLongest)), "...'");
}

}  // namespace bfio
