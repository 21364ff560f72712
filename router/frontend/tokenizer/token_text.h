// The bytes of text that each token stands for, from a tokenizer.json, and finding texts that end an output.
// Supports byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece's BPE and Unigram with byte
// fallback (Llama 2, Mistral). Threads: immutable after Parse; any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::router {

class TokenText {
 public:
  // INVALID_ARGUMENT: not JSON, or without a vocabulary; UNIMPLEMENTED: a tokenizer of another kind.
  static absl::StatusOr<TokenText> Parse(absl::string_view tokenizer_json);

  // Empty for a token that does not exist, and for special tokens unless `special`.
  absl::string_view Of(uint32_t token, bool special) const {
    if (token >= tokens_.size() || (tokens_[token].special && !special)) return {};
    return TextOf(tokens_[token]);
  }

  // All token ids are below it.
  size_t size() const { return tokens_.size(); }

 private:
  // A part of text_.
  struct Token {
    uint32_t begin = 0, size = 0;
    bool special = false;
  };

  absl::string_view TextOf(const Token& token) const {
    return absl::string_view(text_).substr(token.begin, token.size);
  }

  std::string text_;
  std::vector<Token> tokens_;
};

// Finds the end of an output whose request names texts that end it (stops). Engines process tokens only, so
// the router searches the text of an output's tokens as they come. A stop may begin and end in the middle of
// tokens. Keeps only as much of the text as could be the beginning of a stop. Threads: one.
class StopText {
 public:
  // `special`: special tokens are part of the text. REQUIRES: no stop is empty.
  StopText(std::shared_ptr<const TokenText> tokens, std::vector<std::string> stops, bool special);

  // Adds the output's next token. Returns the stop that the text then contains; empty: the output continues.
  // If several stops end with the same token, returns the first in the request's order, as vLLM does.
  std::optional<std::string> Add(uint32_t token);

 private:
  std::shared_ptr<const TokenText> tokens_;
  std::vector<std::string> stops_;
  bool special_;
  // One less than the length of the longest stop.
  size_t kept_ = 0;
  // The end of the text so far.
  std::string tail_;
};

}  // namespace bfio::router
