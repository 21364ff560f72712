// Text as token ids and back, without a tokenizer: one token per byte.
//
// Purpose: bfio does not tokenise. So that tools that speak text can be pointed at it, a text's bytes are its
// tokens: id = offset + byte. Backwards the same; an id that is no byte's is written <|id|>, so every token
// can be seen. Pure; a decoder belongs to one stream.
#ifndef BFIO_TOOLS_OPENAI_BYTE_TEXT_H_
#define BFIO_TOOLS_OPENAI_BYTE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace bfio::openai {

// Appends the text's bytes to `ids`. REQUIRES: offset <= 2^32 - 256.
void AppendBytes(absl::string_view text, uint32_t offset, std::vector<uint32_t>& ids);

// Makes UTF-8 of ids as they come.
class TextDecoder {
 public:
  explicit TextDecoder(uint32_t offset) : offset_(offset) {}

  // What can be said so far: the beginning of a character waits for its end. What is not UTF-8 becomes
  // U+FFFD, one per byte.
  std::string Decode(absl::Span<const uint32_t> ids);
  // The rest, when no more ids will come.
  std::string Finish();

 private:
  void AddByte(unsigned char byte, std::string& out);
  void GiveUp(std::string& out);

  const uint32_t offset_;
  // The bytes of a character whose end has not come, at most 3.
  std::string begun_;
};

}  // namespace bfio::openai

#endif  // BFIO_TOOLS_OPENAI_BYTE_TEXT_H_
