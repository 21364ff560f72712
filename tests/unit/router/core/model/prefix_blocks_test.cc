#include "router/core/model/prefix_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace bfio::core {
namespace {

std::vector<uint32_t> Tokens(size_t count, uint32_t first = 0) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<uint32_t>(i) % 7;
  return tokens;
}

TEST(PrefixBlocks, OnlyWholeBlocksHaveNames) {
  EXPECT_EQ(NamePrefixBlocks({}), nullptr);
  EXPECT_EQ(NamePrefixBlocks(Tokens(kPrefixBlockTokens - 1)), nullptr);
  EXPECT_EQ(NamePrefixBlocks(Tokens(kPrefixBlockTokens))->size(), 1u);
  EXPECT_EQ(NamePrefixBlocks(Tokens(3 * kPrefixBlockTokens + 5))->size(), 3u);
}

TEST(PrefixBlocks, NamesAreEqualAsFarAsPromptsAre) {
  const std::vector<uint32_t> one = Tokens(6 * kPrefixBlockTokens);
  for (size_t at = 0; at < one.size(); at += 17) {
    std::vector<uint32_t> other = one;
    ++other[at];
    const PrefixBlocks a = NamePrefixBlocks(one), b = NamePrefixBlocks(other);
    for (size_t i = 0; i < a->size(); ++i)
      ASSERT_EQ((*a)[i] == (*b)[i], (i + 1) * kPrefixBlockTokens <= at) << "block " << i << ", token " << at;
  }
  EXPECT_EQ(NamePrefixBlocks(one)->back(), NamePrefixBlocks(Tokens(6 * kPrefixBlockTokens + 9))->back());
}

// Equal tokens in every block, and tokens in another order: no two names are the same.
TEST(PrefixBlocks, NamesTellPlaceAndOrder) {
  std::set<uint64_t> names;
  const std::vector<uint32_t> zeros(64 * kPrefixBlockTokens, 0);
  const PrefixBlocks of_zeros = NamePrefixBlocks(zeros);
  names.insert(of_zeros->begin(), of_zeros->end());
  std::vector<uint32_t> swapped = Tokens(kPrefixBlockTokens);
  names.insert(NamePrefixBlocks(swapped)->front());
  std::swap(swapped[0], swapped[1]);
  names.insert(NamePrefixBlocks(swapped)->front());
  EXPECT_EQ(names.size(), 66u);
}

}  // namespace
}  // namespace bfio::core
