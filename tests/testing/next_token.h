// What test engines generate: the next token of a sequence depends on the sequence alone. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bfio::testing {

// The next token of a sequence of `length` tokens, the last of which is `last`.
inline uint32_t NextToken(uint32_t last, size_t length) {
  return static_cast<uint32_t>((last * 7919ull + length * 104729ull) % 30'000) + 1'000;
}

// The tokens that an undisturbed engine generates.
inline std::vector<uint32_t> TokensAfter(const std::vector<uint32_t>& prompt, size_t count) {
  std::vector<uint32_t> tokens;
  uint32_t last = prompt.back();
  for (size_t i = 0; i < count; ++i) tokens.push_back(last = NextToken(last, prompt.size() + i));
  return tokens;
}

}  // namespace bfio::testing
