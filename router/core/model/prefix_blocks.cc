#include "router/core/model/prefix_blocks.h"

#include <cstddef>
#include <utility>

namespace bfio::core {
namespace {

// The finaliser of splitmix64: a bijection whose output bits all depend on all input bits.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t NameAfter(uint64_t name, absl::Span<const uint32_t> tokens) {
  for (const uint32_t token : tokens) name = Mix(name + 0x9e3779b97f4a7c15 + token);
  return name;
}

PrefixBlocks NamePrefixBlocks(absl::Span<const uint32_t> tokens) {
  const size_t blocks = tokens.size() / kPrefixBlockTokens;
  if (blocks == 0) return nullptr;
  std::vector<uint64_t> names;
  names.reserve(blocks);
  uint64_t name = 0;
  for (size_t block = 0; block < blocks; ++block) {
    name = NameAfter(name, tokens.subspan(block * kPrefixBlockTokens, kPrefixBlockTokens));
    names.push_back(name);
  }
  return std::make_shared<const std::vector<uint64_t>>(std::move(names));
}

}  // namespace bfio::core
