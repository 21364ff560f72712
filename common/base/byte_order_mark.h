// The mark that Windows editors put at the beginning of a UTF-8 file. Pure; any thread.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace bfio {

inline absl::string_view WithoutByteOrderMark(absl::string_view text) {
  return absl::StripPrefix(text, "\xef\xbb\xbf");
}

}  // namespace bfio
