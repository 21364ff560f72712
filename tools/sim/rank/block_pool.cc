#include "tools/sim/rank/block_pool.h"

namespace bfio::sim {

BlockPool::BlockPool(int64_t blocks, bool cache) : cache_(cache), blocks_(static_cast<size_t>(blocks) + 1) {
  blocks_.back().next = blocks_.back().previous = static_cast<Block>(blocks);
  for (int64_t block = 0; block < blocks; ++block) Link(static_cast<Block>(block));
}

std::optional<BlockPool::Block> BlockPool::Find(uint64_t name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? std::nullopt : std::optional(it->second);
}

void BlockPool::Share(Block block) {
  if (blocks_[static_cast<size_t>(block)].users++ == 0) Unlink(block);
}

BlockPool::Block BlockPool::Allocate() {
  const Block block = blocks_.back().next;
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
  if (--blocks_[static_cast<size_t>(block)].users == 0) Link(block);
}

void BlockPool::Link(Block block) {
  const Block head = static_cast<Block>(blocks_.size() - 1);
  Entry& entry = blocks_[static_cast<size_t>(block)];
  entry.next = head;
  entry.previous = blocks_.back().previous;
  blocks_[static_cast<size_t>(entry.previous)].next = block;
  blocks_.back().previous = block;
  ++free_;
}

void BlockPool::Unlink(Block block) {
  const Entry& entry = blocks_[static_cast<size_t>(block)];
  blocks_[static_cast<size_t>(entry.previous)].next = entry.next;
  blocks_[static_cast<size_t>(entry.next)].previous = entry.previous;
  --free_;
}

}  // namespace bfio::sim
