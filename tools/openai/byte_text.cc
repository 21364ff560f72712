#include "tools/openai/byte_text.h"

#include "absl/strings/str_cat.h"

namespace bfio::openai {
namespace {

constexpr char kReplacement[] = "\xef\xbf\xbd";

// How many bytes a character has that begins with this one; 0: none does.
size_t CharacterBytes(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  if (first >= 0xf0 && first <= 0xf4) return 4;
  return 0;
}

// Unicode's table 3-7: overlong forms, surrogates and what is beyond U+10FFFF have no second byte.
bool MaySecond(unsigned char first, unsigned char second) {
  switch (first) {
    case 0xe0:
      return second >= 0xa0 && second <= 0xbf;
    case 0xed:
      return second >= 0x80 && second <= 0x9f;
    case 0xf0:
      return second >= 0x90 && second <= 0xbf;
    case 0xf4:
      return second >= 0x80 && second <= 0x8f;
    default:
      return (second & 0xc0) == 0x80;
  }
}

}  // namespace

void AppendBytes(absl::string_view text, uint32_t offset, std::vector<uint32_t>& ids) {
  ids.reserve(ids.size() + text.size());
  for (const char c : text) ids.push_back(offset + static_cast<unsigned char>(c));
}

std::string TextDecoder::Decode(absl::Span<const uint32_t> ids) {
  std::string out;
  for (const uint32_t id : ids) {
    if (id >= offset_ && id - offset_ < 256) {
      AddByte(static_cast<unsigned char>(id - offset_), out);
    } else {
      GiveUp(out);
      absl::StrAppend(&out, "<|", id, "|>");
    }
  }
  return out;
}

std::string TextDecoder::Finish() {
  std::string out;
  GiveUp(out);
  return out;
}

void TextDecoder::AddByte(unsigned char byte, std::string& out) {
  if (!begun_.empty()) {
    const auto first = static_cast<unsigned char>(begun_[0]);
    const bool fits = begun_.size() == 1 ? MaySecond(first, byte) : (byte & 0xc0) == 0x80;
    if (!fits) {
      GiveUp(out);
    } else {
      begun_.push_back(static_cast<char>(byte));
      if (begun_.size() < CharacterBytes(first)) return;
      out += begun_;
      begun_.clear();
      return;
    }
  }
  const size_t bytes = CharacterBytes(byte);
  if (bytes == 0) {
    out += kReplacement;
  } else if (bytes == 1) {
    out.push_back(static_cast<char>(byte));
  } else {
    begun_.assign(1, static_cast<char>(byte));
  }
}

void TextDecoder::GiveUp(std::string& out) {
  for (size_t i = 0; i < begun_.size(); ++i) out += kReplacement;
  begun_.clear();
}

}  // namespace bfio::openai
