// Finds the end of an output whose request names texts that end it (stops). Engines process tokens only, so
// the router searches the text of an output's tokens as they come. A stop may begin and end in the middle of
// tokens. Keeps only as much of the text as could be the beginning of a stop. Threads: one.
#pragma once

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
