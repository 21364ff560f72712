// Where an output ends whose request names texts that end it.
//
// Purpose: engines process tokens only. The text of an output's tokens is searched as they come; a text that
// ends it may begin and end in the middle of tokens. Keeps no more of the text than could still be the
// beginning of one. Threads: one.
#ifndef BFIO_ROUTER_FRONTEND_TOKENIZER_STOP_TEXT_H_
#define BFIO_ROUTER_FRONTEND_TOKENIZER_STOP_TEXT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/frontend/tokenizer/token_text.h"

namespace bfio::router {

class StopText {
 public:
  // `special`: special tokens are part of the text. REQUIRES: no stop is empty.
  StopText(std::shared_ptr<const TokenText> tokens, std::vector<std::string> stops, bool special);

  // The output's next token. Returns the first of the stops that the text then contains; empty: the output
  // continues. Of stops that end with the same token the first in the request's order is meant, as in vLLM.
  std::optional<std::string> Add(uint32_t token);

 private:
  std::shared_ptr<const TokenText> tokens_;
  std::vector<std::string> stops_;
  bool special_;
  // One less than the longest stop.
  size_t kept_ = 0;
  // The end of the text so far.
  std::string tail_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_TOKENIZER_STOP_TEXT_H_
