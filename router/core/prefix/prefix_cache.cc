#include "router/core/prefix/prefix_cache.h"

#include <algorithm>

namespace bfio::core {

PrefixCache::PrefixCache(int64_t capacity_tokens, int64_t most_blocks)
    : capacity_tokens_(capacity_tokens), most_blocks_(most_blocks) {}

int64_t PrefixCache::Find(absl::Span<const uint64_t> blocks) const {
  // The first that is not here.
  const auto end = std::partition_point(blocks.begin(), blocks.end(),
                                        [this](uint64_t block) { return index_.contains(block); });
  return (end - blocks.begin()) * kPrefixBlockTokens;
}

void PrefixCache::Touch(absl::Span<const uint64_t> blocks, PrefixHolders& holders) {
  // From the last, so that the first counts as used latest.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (const auto it = index_.find(*block); it != index_.end()) {
      Unlink(it->second);
      LinkFront(it->second);
    } else {
      PushFront(*block, kPrefixBlockTokens, true);
      ++holders[*block];
    }
  }
  Shrink(holders);
}

void PrefixCache::Write(int64_t tokens, PrefixHolders& holders) {
  if (tokens <= 0) return;
  if (newest_ != kNone && !nodes_[newest_].named && nodes_[newest_].tokens < kPrefixBlockTokens) {
    nodes_[newest_].tokens += tokens;
    tokens_ += tokens;
  } else {
    PushFront(0, tokens, false);
  }
  Shrink(holders);
}

void PrefixCache::PushFront(uint64_t block, int64_t tokens, bool named) {
  Index at = static_cast<Index>(nodes_.size());
  if (unused_.empty()) {
    nodes_.emplace_back();
  } else {
    at = unused_.back();
    unused_.pop_back();
  }
  nodes_[at] = {block, tokens, named, kNone, kNone};
  if (named) index_.emplace(block, at);
  tokens_ += tokens;
  LinkFront(at);
}

void PrefixCache::LinkFront(Index at) {
  nodes_[at].newer = kNone;
  nodes_[at].older = newest_;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = at;
  newest_ = at;
}

void PrefixCache::Unlink(Index at) {
  const Node& node = nodes_[at];
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
}

void PrefixCache::EvictOldest(PrefixHolders& holders) {
  const Index at = oldest_;
  Unlink(at);
  if (nodes_[at].named) {
    index_.erase(nodes_[at].block);
    const auto held = holders.find(nodes_[at].block);
    if (--held->second == 0) holders.erase(held);
  }
  tokens_ -= nodes_[at].tokens;
  unused_.push_back(at);
}

void PrefixCache::Shrink(PrefixHolders& holders) {
  while (oldest_ != kNone && (tokens_ > capacity_tokens_ || blocks() > most_blocks_)) EvictOldest(holders);
}

}  // namespace bfio::core
