#include "tools/report/markup.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio::report {
namespace {

// Mean advance of digits and mixed text in common sans-serif fonts is 0.50 to 0.56 em.
constexpr double kEmPerCharacter = 0.56;

bool IsContinuation(char c) {
  return (static_cast<uint8_t>(c) & 0xC0) == 0x80;
}

// Length of the character at the start of `text` in bytes, 0 if it is malformed or one that XML forbids.
size_t CharacterLength(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x20) return lead == '\t' || lead == '\n' ? 1 : 0;
  if (lead < 0x80) return lead == 0x7F ? 0 : 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  uint32_t code = lead & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(text[i])) return 0;
    code = code << 6 | (static_cast<uint8_t>(text[i]) & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  const bool forbidden = code == 0xFFFE || code == 0xFFFF || code > 0x10FFFF;
  return overlong || surrogate || forbidden ? 0 : length;
}

size_t CharacterCount(absl::string_view text) {
  size_t count = 0;
  for (const char c : text) count += IsContinuation(c) ? 0 : 1;
  return count;
}

}  // namespace

std::string Escape(absl::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    switch (text[0]) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        absl::StrAppend(&escaped, length == 0 ? "\uFFFD" : text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return escaped;
}

std::string WithUnit(absl::string_view name, absl::string_view unit) {
  return unit.empty() ? std::string(name) : absl::StrCat(name, " [", unit, "]");
}

double TextWidth(absl::string_view text, double font_size) {
  return kEmPerCharacter * font_size * static_cast<double>(CharacterCount(text));
}

std::vector<std::string> WrapText(absl::string_view text, double width, double font_size) {
  std::vector<std::string> lines(1);
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    std::string& line = lines.back();
    if (line.empty()) {
      line = std::string(word);
    } else if (TextWidth(absl::StrCat(line, " ", word), font_size) <= width) {
      absl::StrAppend(&line, " ", word);
    } else {
      lines.emplace_back(word);
    }
  }
  return lines;
}

std::string Shortened(absl::string_view text, size_t characters) {
  if (CharacterCount(text) <= characters) return std::string(text);
  size_t bytes = 0;
  for (size_t kept = 0; bytes < text.size(); ++bytes) {
    if (!IsContinuation(text[bytes]) && kept++ == characters - 1) break;
  }
  return absl::StrCat(text.substr(0, bytes), "…");
}

}  // namespace bfio::report
