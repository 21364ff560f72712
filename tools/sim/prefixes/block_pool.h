// The blocks of an engine's KV memory, which keep their contents until the memory is needed.
//
// Purpose: prefix caching as in vLLM's block pool. A full block has a name. A block that no request uses is
// free, and keeps its name until it is allocated again: the one that has been free longest goes first.
//
// Threads: one. Cost: O(1) each. Units: blocks.
#ifndef BFIO_TOOLS_SIM_PREFIXES_BLOCK_POOL_H_
#define BFIO_TOOLS_SIM_PREFIXES_BLOCK_POOL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace bfio::sim {

class BlockPool {
 public:
  using Block = int32_t;

  // So many free blocks without names. Where it does not `cache`, blocks never get names.
  BlockPool(int64_t blocks, bool cache);

  std::optional<Block> Find(uint64_t name) const;
  bool in_use(Block block) const { return blocks_[static_cast<size_t>(block)].users > 0; }
  // Another request uses a block that was found.
  void Share(Block block);
  // The block that has been free longest; it loses its name. REQUIRES: free_blocks() > 0.
  Block Allocate();
  // The block is full. A name that another block has stays there.
  void Name(Block block, uint64_t name);
  // A request uses it no longer; without users it becomes the block that has been free for the shortest time.
  void Release(Block block);

  int64_t free_blocks() const { return free_; }
  int64_t size() const { return static_cast<int64_t>(blocks_.size()) - 1; }

 private:
  struct Entry {
    std::optional<uint64_t> name;
    int32_t users = 0;
    // Of the ring of free blocks, in order of their release.
    Block next = 0, previous = 0;
  };

  void Link(Block block);
  void Unlink(Block block);

  const bool cache_;
  // The last entry is the ring's head, no block.
  std::vector<Entry> blocks_;
  absl::flat_hash_map<uint64_t, Block> by_name_;
  int64_t free_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_PREFIXES_BLOCK_POOL_H_
