// The bytes of text that each token stands for, from a tokenizer.json. Finding texts that end an output
// (stop_text.h). Supports byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece's BPE and Unigram with byte
// fallback (Llama 2, Mistral). Threads: immutable after Parse; any.
#pragma once

#include <cstdint>
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

}  // namespace bfio::router
