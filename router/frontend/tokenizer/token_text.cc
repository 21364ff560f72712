#include "router/frontend/tokenizer/token_text.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"

namespace bfio::router {
namespace {

using nlohmann::json;

// Upper bound of token ids; no vocabulary has as many.
constexpr int64_t kMaxTokens = 1 << 22;
// As model_files.h allows.
constexpr size_t kMaxTextBytes = size_t{256} << 20;

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
    const auto found = one.is_object() ? one.find("type") : one.end();
    return found != one.end() && *found == std::string(type);
  };
  if (is_of_type(decoder)) return true;
  const auto parts = decoder.is_object() ? decoder.find("decoders") : decoder.end();
  return parts != decoder.end() && parts->is_array() && std::any_of(parts->begin(), parts->end(), is_of_type);
}

absl::StatusOr<Spelling> SpellingOf(const json& decoder) {
  if (Decodes(decoder, "ByteLevel")) return Spelling::kByteLevel;
  if (Decodes(decoder, "ByteFallback") || Decodes(decoder, "Metaspace")) return Spelling::kSentencePiece;
  return absl::UnimplementedError("its decoder must be ByteLevel, ByteFallback or Metaspace");
}

// The tokens of a tokenizer.json, which may have hundreds of thousands: read one at a time, without the
// merges, which are most of the file.
bool Wanted(const JsonPath& path) {
  return path.Is({"model", "vocab", "*"}) || path.Is({"added_tokens", "*"}) || path.Is({"decoder"}) ||
         (path.kind != JsonPath::Kind::kArray && path.Is({"added_tokens"}));
}

bool IsAddedToken(const json& token) {
  const auto is = [&token](const char* field, bool (json::*type)() const noexcept) {
    const auto found = token.find(field);
    return found != token.end() && ((*found).*type)();
  };
  return token.is_object() && is("id", &json::is_number_integer) && is("content", &json::is_string) &&
         (!token.contains("special") || is("special", &json::is_boolean));
}

}  // namespace

absl::StatusOr<TokenText> TokenText::Parse(absl::string_view tokenizer_json) {
  TokenText out;
  json decoder;
  bool has_vocabulary = false;
  // Added tokens are written as plain text. They may also be in the vocabulary.
  std::vector<std::pair<uint32_t, Token>> added;
  const auto stored = [&out](absl::string_view text, bool special) {
    const Token token = {static_cast<uint32_t>(out.text_.size()), static_cast<uint32_t>(text.size()),
                         special};
    out.text_.append(text.data(), text.size());
    return token;
  };
  const auto put = [&out](uint32_t id, const Token& token) {
    if (id >= out.tokens_.size()) out.tokens_.resize(id + 1);
    out.tokens_[id] = token;
  };
  const auto on = [&](JsonPath& path, json& value) {
    if (path.Is({"decoder"})) {
      decoder = std::move(value);
      return absl::OkStatus();
    }
    const bool of_vocabulary = path.names.size() == 3;
    // BPE: ids by token; Unigram: a list of token and score.
    const bool of_list = of_vocabulary && path.in_array;
    if (of_list && !(value.is_array() && !value.empty() && value[0].is_string()))
      return absl::InvalidArgumentError("its vocabulary is not a list of tokens");
    if (!of_vocabulary && !(path.in_array && IsAddedToken(value)))
      return absl::InvalidArgumentError("one of its added_tokens has no id or no content");
    const json& number = of_vocabulary ? value : value["id"];
    int64_t id = number.is_number_integer() ? number.get<int64_t>() : -1;
    if (of_list) id = static_cast<int64_t>(out.tokens_.size());
    if (id < 0 || id >= kMaxTokens)
      return absl::InvalidArgumentError(absl::StrCat("a token's id must be within 0..", kMaxTokens - 1));
    if (of_vocabulary) {
      has_vocabulary = true;
      put(static_cast<uint32_t>(id),
          stored(of_list ? value[0].get_ref<const std::string&>() : path.names[2], false));
    } else {
      added.emplace_back(static_cast<uint32_t>(id), stored(value["content"].get_ref<const std::string&>(),
                                                           value.value("special", false)));
    }
    return absl::OkStatus();
  };
  BFIO_RETURN_IF_ERROR(ReadJson(tokenizer_json, "", {.bytes = kMaxTextBytes, .values = 4096}, Wanted, on));
  if (!has_vocabulary) return absl::InvalidArgumentError("it has no vocabulary");
  BFIO_ASSIGN_OR_RETURN(const Spelling spelling, SpellingOf(decoder));
  // In place: no text is longer than its spelling.
  for (Token& token : out.tokens_) {
    const std::string text = spelling == Spelling::kByteLevel ? FromByteLevel(out.TextOf(token))
                                                              : FromSentencePiece(out.TextOf(token));
    out.text_.replace(token.begin, text.size(), text);
    token.size = static_cast<uint32_t>(text.size());
  }
  for (const auto& [id, token] : added) put(id, token);
  return out;
}

StopText::StopText(std::shared_ptr<const TokenText> tokens, std::vector<std::string> stops, bool special)
    : tokens_(std::move(tokens)), stops_(std::move(stops)), special_(special) {
  for (const std::string& stop : stops_) kept_ = std::max(kept_, stop.size() - 1);
}

std::optional<std::string> StopText::Add(uint32_t token) {
  const absl::string_view text = tokens_->Of(token, special_);
  if (text.empty()) return std::nullopt;
  const size_t before = tail_.size();
  absl::StrAppend(&tail_, text);
  for (const std::string& stop : stops_) {
    // A new match must end within the token's text, because earlier ones would have been found before.
    const size_t first = before < stop.size() ? 0 : before - stop.size() + 1;
    if (absl::StrContains(absl::string_view(tail_).substr(first), stop)) return stop;
  }
  if (tail_.size() > kept_) tail_.erase(0, tail_.size() - kept_);
  return std::nullopt;
}

}  // namespace bfio::router
