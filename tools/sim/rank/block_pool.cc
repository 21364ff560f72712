#include "tools/sim/rank/block_pool.h"

namespace bfio::sim {

BlockPool::BlockPool(int64_t blocks, bool cache) : cache_(cache), blocks_(static_cast<size_t>(blocks)) {
  for (int64_t block = 0; block < blocks; ++block)
    blocks_[static_cast<size_t>(block)].at = free_.insert(free_.end(), static_cast<Block>(block));
}

std::optional<BlockPool::Block> BlockPool::Find(uint64_t name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? std::nullopt : std::optional(it->second);
}

void BlockPool::Share(Block block) {
  Entry& entry = blocks_[static_cast<size_t>(block)];
  if (entry.users++ == 0) used_.splice(used_.end(), free_, entry.at);
}

BlockPool::Block BlockPool::Allocate() {
  const Block block = free_.front();
  Entry& entry = blocks_[static_cast<size_t>(block)];
  if (entry.name) by_name_.erase(*entry.name);
  entry.name.reset();
  Share(block);
  return block;
}

void BlockPool::Name(Block block, uint64_t name) {
  if (!cache_ || !by_name_.try_emplace(name, block).second) return;
  blocks_[static_cast<size_t>(block)].name = name;
}

void BlockPool::Release(Block block) {
  Entry& entry = blocks_[static_cast<size_t>(block)];
  if (--entry.users == 0) free_.splice(free_.end(), used_, entry.at);
}

}  // namespace bfio::sim
