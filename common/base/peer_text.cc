#include "common/base/peer_text.h"

#include "absl/strings/str_cat.h"

namespace bfio {

std::string PeerText(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > most - 4 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "... (", text.size(), " bytes)");
}

}  // namespace bfio
