#include "router/frontend/tokenizer/token_text.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace bfio::router {
namespace {

using nlohmann::json;

// Upper bound of token ids; no vocabulary has as many.
constexpr int64_t kMaxTokens = 1 << 22;

// How a vocabulary writes bytes.
enum class Spelling {
  // Each byte as one character: printable bytes as themselves, the others as characters from U+0100 on, in
  // order.
  kByteLevel,
  // As text, with U+2581 for a space, and forms such as <0x0A> for bytes that are not text.
  kSentencePiece,
};

bool IsPrintable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// By character: the byte that it stands for, or -1.
std::array<int, 0x180> ByteLevelAlphabet() {
  std::array<int, 0x180> bytes;
  bytes.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 0x100; ++byte)
    bytes[IsPrintable(byte) ? byte : next++] = static_cast<int>(byte);
  return bytes;
}

std::string FromByteLevel(absl::string_view spelt) {
  static const std::array<int, 0x180> kBytes = ByteLevelAlphabet();
  std::string text;
  for (size_t i = 0; i < spelt.size(); ++i) {
    uint32_t character = static_cast<uint8_t>(spelt[i]);
    // All characters of the alphabet have one or two bytes in UTF-8.
    if (character >= 0xc0 && character < 0xe0 && i + 1 < spelt.size())
      character = (character & 0x1f) << 6 | (static_cast<uint8_t>(spelt[++i]) & 0x3f);
    if (character >= kBytes.size() || kBytes[character] < 0) return std::string(spelt);
    text.push_back(static_cast<char>(kBytes[character]));
  }
  return text;
}

std::string FromSentencePiece(absl::string_view spelt) {
  int byte = 0;
  if (spelt.size() == 6 && spelt.substr(0, 3) == "<0x" && spelt[5] == '>' &&
      absl::SimpleHexAtoi(spelt.substr(3, 2), &byte)) {
    return std::string(1, static_cast<char>(byte));
  }
  return absl::StrReplaceAll(spelt, {{"\u2581", " "}});
}

// Whether the decoder, or a decoder in its sequence, has this type.
bool Decodes(const json& decoder, absl::string_view type) {
  const auto is_of_type = [type](const json& one) {
    return one.is_object() && one.value("type", json()) == std::string(type);
  };
  if (is_of_type(decoder)) return true;
  if (!decoder.is_object()) return false;
  const json parts = decoder.value("decoders", json());
  return parts.is_array() && std::any_of(parts.begin(), parts.end(), is_of_type);
}

absl::StatusOr<Spelling> SpellingOf(const json& decoder) {
  if (Decodes(decoder, "ByteLevel")) return Spelling::kByteLevel;
  if (Decodes(decoder, "ByteFallback") || Decodes(decoder, "Metaspace")) return Spelling::kSentencePiece;
  return absl::UnimplementedError("its decoder must be ByteLevel, ByteFallback or Metaspace");
}

using OnToken = std::function<absl::Status(const std::string& spelt, int64_t id)>;

// BPE: ids by token; Unigram: a list of token and score.
absl::Status ForEachToken(const json& vocabulary, const OnToken& on_token) {
  if (vocabulary.is_array()) {
    for (size_t i = 0; i < vocabulary.size(); ++i) {
      const json& entry = vocabulary[i];
      if (!entry.is_array() || entry.empty() || !entry[0].is_string())
        return absl::InvalidArgumentError("its vocabulary is not a list of tokens");
      BFIO_RETURN_IF_ERROR(on_token(entry[0].get<std::string>(), static_cast<int64_t>(i)));
    }
    return absl::OkStatus();
  }
  if (!vocabulary.is_object()) return absl::InvalidArgumentError("it has no vocabulary");
  for (const auto& [spelt, id] : vocabulary.items()) {
    BFIO_RETURN_IF_ERROR(on_token(spelt, id.is_number_integer() ? id.get<int64_t>() : -1));
  }
  return absl::OkStatus();
}

// Skips the merges, which are most of the file and are not used here.
json ParseWithoutMerges(absl::string_view text) {
  const auto wanted = [](int depth, json::parse_event_t event, json& parsed) {
    return !(event == json::parse_event_t::key && depth == 2 && parsed == "merges");
  };
  return json::parse(text.begin(), text.end(), wanted, /*allow_exceptions=*/false);
}

}  // namespace

absl::StatusOr<TokenText> TokenText::Parse(absl::string_view tokenizer_json) {
  const json tokenizer = ParseWithoutMerges(tokenizer_json);
  if (!tokenizer.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  const auto model = tokenizer.find("model");
  if (model == tokenizer.end() || !model->is_object() || !model->contains("vocab"))
    return absl::InvalidArgumentError("it has no vocabulary");
  BFIO_ASSIGN_OR_RETURN(const Spelling spelling, SpellingOf(tokenizer.value("decoder", json())));
  TokenText out;
  const auto put = [&](int64_t id, std::string text, bool special) -> absl::Status {
    if (id < 0 || id >= kMaxTokens)
      return absl::InvalidArgumentError(absl::StrCat("a token's id must be within 0..", kMaxTokens - 1));
    if (static_cast<size_t>(id) >= out.tokens_.size()) out.tokens_.resize(static_cast<size_t>(id) + 1);
    out.tokens_[static_cast<size_t>(id)] = {std::move(text), special};
    return absl::OkStatus();
  };
  absl::Status status = ForEachToken((*model)["vocab"], [&](const std::string& spelt, int64_t id) {
    return put(id, spelling == Spelling::kByteLevel ? FromByteLevel(spelt) : FromSentencePiece(spelt), false);
  });
  // Added tokens are written as plain text. They may also be in the vocabulary.
  const json added = tokenizer.value("added_tokens", json::array());
  if (!added.is_array()) return absl::InvalidArgumentError("its added_tokens are not a list");
  for (const json& token : added) {
    if (!status.ok()) return status;
    const bool proper = token.is_object() && token.contains("id") && token["id"].is_number_integer() &&
                        token.contains("content") && token["content"].is_string() &&
                        (!token.contains("special") || token["special"].is_boolean());
    if (!proper) return absl::InvalidArgumentError("one of its added_tokens has no id or no content");
    status =
        put(token["id"].get<int64_t>(), token["content"].get<std::string>(), token.value("special", false));
  }
  if (!status.ok()) return status;
  return out;
}

}  // namespace bfio::router
