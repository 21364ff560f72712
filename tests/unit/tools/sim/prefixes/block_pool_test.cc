// The blocks of an engine's KV memory: which of them keep their contents.
#include "tools/sim/prefixes/block_pool.h"

#include <gtest/gtest.h>

namespace bfio::sim {
namespace {

TEST(BlockPoolTest, TheBlockThatHasBeenFreeLongestGoesFirst) {
  BlockPool pool(3, true);
  const BlockPool::Block a = pool.Allocate(), b = pool.Allocate(), c = pool.Allocate();
  pool.Name(a, 1);
  pool.Name(b, 2);
  pool.Name(c, 3);
  EXPECT_EQ(pool.free_blocks(), 0);
  for (const BlockPool::Block block : {b, c, a}) pool.Release(block);
  EXPECT_EQ(pool.Find(2), b) << "its contents stay until it is allocated again";
  pool.Share(b);  // the block is used again
  EXPECT_TRUE(pool.in_use(b));
  EXPECT_EQ(pool.Allocate(), c);
  EXPECT_EQ(pool.Find(3), std::nullopt);
  EXPECT_EQ(pool.Allocate(), a);
  EXPECT_EQ(pool.free_blocks(), 0);
  EXPECT_EQ(pool.Find(2), b) << "a block in use is not evicted";
}

TEST(BlockPoolTest, ASharedBlockIsFreeWithoutItsLastUser) {
  BlockPool pool(2, true);
  const BlockPool::Block a = pool.Allocate();
  pool.Name(a, 1);
  pool.Share(a);
  pool.Release(a);
  EXPECT_EQ(pool.free_blocks(), 1);
  pool.Release(a);
  EXPECT_EQ(pool.free_blocks(), 2);
}

TEST(BlockPoolTest, ANameStaysWithItsFirstBlock) {
  BlockPool pool(2, true);
  const BlockPool::Block a = pool.Allocate(), b = pool.Allocate();
  pool.Name(a, 1);
  pool.Name(b, 1);
  EXPECT_EQ(pool.Find(1), a);
  pool.Release(b);
  EXPECT_EQ(pool.Allocate(), b);
  EXPECT_EQ(pool.Find(1), a) << "the block without the name was evicted";
}

TEST(BlockPoolTest, WithoutCacheNothingIsFound) {
  BlockPool pool(1, false);
  pool.Name(pool.Allocate(), 1);
  EXPECT_EQ(pool.Find(1), std::nullopt);
}

}  // namespace
}  // namespace bfio::sim
