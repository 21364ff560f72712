// The bytes of text that a token stands for, by a tokenizer.json.
//
// Purpose: finding the end of an output that a text ends (stop_text.h). Reads byte-level BPE (GPT-2, Llama 3,
// Qwen) and SentencePiece's BPE and Unigram with byte fallback (Llama 2, Mistral). Threads: immutable after
// Parse; any.
#ifndef BFIO_ROUTER_FRONTEND_TOKENIZER_TOKEN_TEXT_H_
#define BFIO_ROUTER_FRONTEND_TOKENIZER_TOKEN_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::router {

class TokenText {
 public:
  // INVALID_ARGUMENT: not JSON, or no vocabulary in it; UNIMPLEMENTED: a tokenizer of another kind.
  static absl::StatusOr<TokenText> Parse(absl::string_view tokenizer_json);

  // Empty for a token that there is not, and for special ones unless `special`.
  absl::string_view Of(uint32_t token, bool special) const {
    if (token >= tokens_.size() || (tokens_[token].special && !special)) return {};
    return tokens_[token].text;
  }

  // Tokens' ids are below it.
  size_t size() const { return tokens_.size(); }

 private:
  struct Token {
    std::string text;
    bool special = false;
  };

  std::vector<Token> tokens_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_TOKENIZER_TOKEN_TEXT_H_
