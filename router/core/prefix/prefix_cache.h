// What one worker's prefix cache is expected to hold: the blocks of earlier prompts whose KV it has kept.
//
// Purpose: an engine keeps the KV of ended requests until it needs the memory, and a prompt that begins like
// an earlier one computes only the rest. The router cannot read that cache, so it follows it: all blocks of a
// prompt are there once the prompt was placed, the tokens that a request generates take memory, too, and the
// least recently used go first. Engines evict by the same rule (vLLM: free blocks, least recently used
// first). Blocks that a request was to compute and has not leave with it, unless others are to compute them.
//
// A block is touched together with all blocks before it and counts as used later than those behind it. So
// when a block is here, all blocks before it in its prompt are here, and the number of a prompt's blocks that
// are here is found by bisection. (Where a block is evicted while requests await it, these are not counted
// any more. If it comes back and they are withdrawn, it may leave although later requests await it.)
//
// Threads: one. Units: tokens. Cost: O(log blocks) look-ups to find, O(blocks) to touch. Memory: 64 to 99
// bytes (measured) for each entry that there has been at once. There are most_entries at most, and with those
// of the prompt that is being touched up to as many again.
#ifndef BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHE_H_
#define BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHE_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "router/core/model/prefix_blocks.h"

namespace bfio::core {

class PrefixCache {
 public:
  // An empty cache of so many tokens.
  PrefixCache(int64_t capacity_tokens, int64_t most_entries)
      : capacity_tokens_(capacity_tokens), most_entries_(most_entries) {}

  // How many tokens at the beginning of that prompt are here; whole blocks.
  int64_t Find(absl::Span<const uint64_t> blocks) const;
  bool Has(uint64_t block) const { return index_.contains(block); }
  // The prompt is computed.
  void Touch(absl::Span<const uint64_t> blocks) { Enter(blocks, 0, true); }
  // A request is to compute the prompt.
  void Await(absl::Span<const uint64_t> blocks) { Enter(blocks, 1, false); }
  // It has, and has ended. Or it has computed so many of the blocks, and computes no more.
  void Complete(absl::Span<const uint64_t> blocks) { Enter(blocks, -1, true); }
  void Withdraw(absl::Span<const uint64_t> blocks, size_t computed);
  // Memory is used by tokens that no prompt begins with: generated ones, and the end of a prompt that fills
  // no block.
  void Write(int64_t tokens);
  void SetMostEntries(int64_t most_entries);

  // What the entries stand for. Tokens of no block are entered as soon as they would fill one.
  int64_t tokens() const { return tokens_; }
  int64_t entries() const { return static_cast<int64_t>(nodes_.size() - unused_.size()); }
  // For how many there is memory.
  int64_t allocated_entries() const { return static_cast<int64_t>(nodes_.size()); }

 private:
  using Index = uint32_t;
  static constexpr Index kNone = ~Index{0};
  // Of the list from the most to the least recently used.
  struct Node {
    // Of a block; for tokens of no block unused.
    uint64_t block = 0;
    int64_t tokens = 0;
    bool named = false;
    bool computed = false;
    // Requests that have awaited it since it is here, and are not complete or withdrawn.
    int32_t awaited = 0;
    Index newer = kNone, older = kNone;
  };

  // Makes the blocks those used last, and so many requests more await them.
  void Enter(absl::Span<const uint64_t> blocks, int32_t awaited, bool computed);
  Index PushFront(uint64_t block, int64_t tokens, bool named);
  void LinkFront(Index at);
  void Unlink(Index at);
  void Remove(Index at);
  void Shrink();

  int64_t capacity_tokens_;
  int64_t most_entries_;
  int64_t tokens_ = 0;
  // Tokens of no block that are not entered yet.
  int64_t loose_ = 0;
  absl::flat_hash_map<uint64_t, Index> index_;
  std::vector<Node> nodes_;
  std::vector<Index> unused_;
  Index newest_ = kNone, oldest_ = kNone;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHE_H_
