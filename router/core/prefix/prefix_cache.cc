#include "router/core/prefix/prefix_cache.h"

#include <algorithm>

namespace bfio::core {

int64_t PrefixCache::Find(absl::Span<const uint64_t> blocks) const {
  if (blocks.empty() || !Has(blocks.front())) return 0;
  // The first block that is not cached.
  const auto end =
      std::partition_point(blocks.begin(), blocks.end(), [this](uint64_t block) { return Has(block); });
  return (end - blocks.begin()) * kPrefixBlockTokens;
}

void PrefixCache::Enter(absl::Span<const uint64_t> blocks, int32_t awaited, bool computed) {
  // Further blocks would be evicted at once.
  blocks = blocks.subspan(0, static_cast<size_t>(most_entries_));
  // From the last block, so that the first one counts as used most recently.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    Index at = kNone;
    if (const auto it = index_.find(*block); it != index_.end()) {
      at = it->second;
      Unlink(at);
      LinkFront(at);
    } else {
      at = PushFront(*block, kPrefixBlockTokens, true);
    }
    nodes_[at].awaited = std::max(0, nodes_[at].awaited + awaited);
    nodes_[at].computed |= computed;
  }
  Shrink();
}

void PrefixCache::Withdraw(absl::Span<const uint64_t> blocks, size_t computed) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto it = index_.find(blocks[i]);
    if (it == index_.end()) continue;
    Node& node = nodes_[it->second];
    node.awaited = std::max(0, node.awaited - 1);
    node.computed |= i < computed;
    if (node.awaited == 0 && !node.computed) Remove(it->second);
  }
}

void PrefixCache::Write(int64_t tokens) {
  loose_ += std::max<int64_t>(0, tokens);
  const int64_t whole = loose_ / kPrefixBlockTokens * kPrefixBlockTokens;
  if (whole == 0) return;
  loose_ -= whole;
  PushFront(0, whole, false);
  Shrink();
}

void PrefixCache::SetMostEntries(int64_t most_entries) {
  most_entries_ = most_entries;
  Shrink();
}

PrefixCache::Index PrefixCache::PushFront(uint64_t block, int64_t tokens, bool named) {
  Index at = static_cast<Index>(nodes_.size());
  if (unused_.empty()) {
    nodes_.emplace_back();
  } else {
    at = unused_.back();
    unused_.pop_back();
  }
  nodes_[at] = {.block = block, .tokens = tokens, .named = named};
  if (named) index_.emplace(block, at);
  tokens_ += tokens;
  LinkFront(at);
  return at;
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

void PrefixCache::Remove(Index at) {
  Unlink(at);
  if (nodes_[at].named) index_.erase(nodes_[at].block);
  tokens_ -= nodes_[at].tokens;
  unused_.push_back(at);
}

void PrefixCache::Shrink() {
  while (oldest_ != kNone && (tokens_ > capacity_tokens_ || entries() > most_entries_)) Remove(oldest_);
}

}  // namespace bfio::core
