// A model of one worker's prefix cache: the blocks of earlier prompts whose KV it is expected to hold.
//
// Purpose: an engine keeps the KV of ended requests until it needs the memory, and a prompt that begins like
// an earlier one computes only the rest. The router cannot read that cache, so it models it: all blocks of a
// prompt are cached once the prompt was placed, generated tokens take memory, too, and the least recently
// used blocks are evicted first. Engines evict by the same rule (vLLM: free blocks, least recently used
// first). Blocks that a request has not computed are removed with it, unless other requests are to compute
// them.
//
// A block is touched together with all blocks before it and counts as used later than those behind it. So
// when a block is cached, all blocks before it in its prompt are cached, and bisection finds the number of a
// prompt's cached blocks. (When a block is evicted while requests await it, the requests are no longer
// counted for it. If it is cached again and they are withdrawn, it may be removed although later requests
// await it.)
//
// Threads: one. Units: tokens. Cost: O(log blocks) look-ups to find, O(blocks) to touch. Memory: 64 to 99
// bytes (measured) per entry, for the largest number of entries so far. There are at most most_entries, plus
// those of the prompt that is being touched, which can double them.
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
  // An empty cache of this many tokens.
  PrefixCache(int64_t capacity_tokens, int64_t most_entries)
      : capacity_tokens_(capacity_tokens), most_entries_(most_entries) {}

  // Number of tokens at the beginning of that prompt that are cached; whole blocks.
  int64_t Find(absl::Span<const uint64_t> blocks) const;
  bool Has(uint64_t block) const { return index_.contains(block); }
  // The prompt has been computed.
  void Touch(absl::Span<const uint64_t> blocks) { Enter(blocks, 0, true); }
  // A request will compute the prompt.
  void Await(absl::Span<const uint64_t> blocks) { Enter(blocks, 1, false); }
  // That request has computed the prompt and ended; or has computed only these blocks, and computes no more.
  void Complete(absl::Span<const uint64_t> blocks) { Enter(blocks, -1, true); }
  void Withdraw(absl::Span<const uint64_t> blocks, size_t computed);
  // Memory is used by tokens of no block: generated tokens, and the end of a prompt that does not fill a
  // block.
  void Write(int64_t tokens);
  void SetMostEntries(int64_t most_entries);

  // Tokens of the entries. Tokens of no block are entered as soon as they would fill one.
  int64_t tokens() const { return tokens_; }
  int64_t entries() const { return static_cast<int64_t>(nodes_.size() - unused_.size()); }
  // Number of entries for which memory is allocated.
  int64_t allocated_entries() const { return static_cast<int64_t>(nodes_.size()); }

 private:
  using Index = uint32_t;
  static constexpr Index kNone = ~Index{0};
  // An entry of the list from the most to the least recently used.
  struct Node {
    // The block's name; unused for tokens of no block.
    uint64_t block = 0;
    int64_t tokens = 0;
    bool named = false;
    bool computed = false;
    // Number of requests that have awaited the block since it was entered, and are not complete or withdrawn.
    int32_t awaited = 0;
    Index newer = kNone, older = kNone;
  };

  // Makes these blocks the most recently used; adds `awaited` to the number of requests that await them.
  void Enter(absl::Span<const uint64_t> blocks, int32_t awaited, bool computed);
  Index PushFront(uint64_t block, int64_t tokens, bool named);
  void LinkFront(Index at);
  void Unlink(Index at);
  void Remove(Index at);
  void Shrink();

  int64_t capacity_tokens_;
  int64_t most_entries_;
  int64_t tokens_ = 0;
  // Tokens of no block that have not been entered yet.
  int64_t loose_ = 0;
  absl::flat_hash_map<uint64_t, Index> index_;
  std::vector<Node> nodes_;
  std::vector<Index> unused_;
  Index newest_ = kNone, oldest_ = kNone;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHE_H_
