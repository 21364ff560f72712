// Untrusted text in an error message.
//
// Purpose: one printable line of bounded length, whatever the file said. Threads: pure functions.
#ifndef BFIO_WORKER_ENGINE_MODEL_QUOTE_H_
#define BFIO_WORKER_ENGINE_MODEL_QUOTE_H_

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace bfio::worker {

// 'text', escaped, cut at 120 bytes.
inline std::string Quote(absl::string_view text) {
  constexpr size_t kLongest = 120;
  if (text.size() <= kLongest) return absl::StrCat("'", absl::CHexEscape(text), "'");
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kLongest)), "...'");
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_QUOTE_H_
