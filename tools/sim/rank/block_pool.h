// The blocks of an engine's KV memory, which keep their contents until the memory is needed. Prefix caching
// as in vLLM's block pool. A full block has a name. A block without users is free, but keeps its name until
// it is allocated again. The block that has been free longest is allocated first. Threads: one. Cost: O(1)
// per call. Units: blocks.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace bfio::sim {

// Tokens per block of an engine's KV memory, as in vLLM.
inline constexpr int64_t kEngineBlockTokens = 16;

class BlockPool {
 public:
  using Block = int32_t;

  // `blocks` free blocks without names. Without `cache`, blocks never get names.
  BlockPool(int64_t blocks, bool cache);

  std::optional<Block> Find(uint64_t name) const;
  bool in_use(Block block) const { return blocks_[static_cast<size_t>(block)].users > 0; }
  // Adds a user to a block that Find returned.
  void Share(Block block);
  // Returns the block that has been free longest; the block loses its name. REQUIRES: free_blocks() > 0.
  Block Allocate();
  // Names a full block. No effect if another block has the name.
  void Name(Block block, uint64_t name);
  // Removes a user. A block without users becomes the most recently freed one.
  void Release(Block block);

  int64_t free_blocks() const { return std::ssize(free_); }
  int64_t size() const { return std::ssize(blocks_); }
  bool cache() const { return cache_; }

 private:
  struct Entry {
    std::optional<uint64_t> name;
    int32_t users = 0;
    // In free_ or used_.
    std::list<Block>::iterator at;
  };

  const bool cache_;
  std::vector<Entry> blocks_;
  absl::flat_hash_map<uint64_t, Block> by_name_;
  // Free blocks in order of their release.
  std::list<Block> free_, used_;
};

}  // namespace bfio::sim
