// Requests with given tokens.
#ifndef BFIO_TESTS_UNIT_TOOLS_SIM_PREFIXES_TOKEN_REQUEST_H_
#define BFIO_TESTS_UNIT_TOOLS_SIM_PREFIXES_TOKEN_REQUEST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/rng.h"
#include "tools/sim/prefixes/prefix_request.h"

namespace bfio::sim {

using Tokens = std::vector<uint64_t>;

// Blocks are named by all tokens up to their ends.
inline PrefixRequest RequestOf(core::RequestId id, const Tokens& tokens, int64_t prompt_tokens) {
  PrefixRequest request;
  request.id = id;
  request.prompt_tokens = prompt_tokens;
  request.output_tokens = request.max_new_tokens = static_cast<int64_t>(tokens.size()) - prompt_tokens;
  std::vector<uint64_t> names;
  uint64_t name = 1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    name = Mix64(name ^ Mix64(tokens[i]));
    if ((i + 1) % kEngineBlockTokens == 0) request.blocks.push_back(name);
    if ((i + 1) % core::kPrefixBlockTokens == 0 && static_cast<int64_t>(i) < prompt_tokens)
      names.push_back(name);
  }
  request.prefix = std::make_shared<const std::vector<uint64_t>>(names);
  return request;
}

// `length` tokens of a text.
inline Tokens Text(uint64_t text, size_t length) {
  Tokens tokens;
  for (size_t i = 0; i < length; ++i) tokens.push_back(text << 32 | i);
  return tokens;
}

inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace bfio::sim

#endif  // BFIO_TESTS_UNIT_TOOLS_SIM_PREFIXES_TOKEN_REQUEST_H_
