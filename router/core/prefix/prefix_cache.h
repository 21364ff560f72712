// A model of one worker's prefix cache: the blocks of earlier prompts whose KV it is expected to hold.
//
// Purpose: an engine keeps the KV of ended requests until it needs the memory, and for a prompt that shares a
// prefix with an earlier one it computes only the rest. The router cannot read that cache, so it models it:
// all blocks of a prompt are there once the prompt was placed, generated tokens also take memory, and the
// least recently used blocks are evicted first. Engines evict by the same rule (vLLM: free blocks, least
// recently used first). Blocks that a request should have computed and has not are removed when it ends,
// unless other requests will compute them.
//
// A block is touched together with all blocks before it and counts as used later than those behind it. So
// when a block is here, all blocks before it in its prompt are here, and the number of a prompt's blocks that
// are here is found by bisection. (When a block is evicted while requests await it, these requests are no
// longer counted. If the block returns and they are withdrawn, it may be removed although later requests
// await it.)
//
// Threads: one. Units: tokens. Cost: Find takes O(log blocks) look-ups, Touch O(blocks). Memory: 64 to 99
// bytes (measured) per entry of the largest number ever held at once. That number is at most most_entries,
// and up to twice that while a prompt is being touched.
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
  // An empty cache with memory for this many tokens.
  PrefixCache(int64_t capacity_tokens, int64_t most_entries)
      : capacity_tokens_(capacity_tokens), most_entries_(most_entries) {}

  // Number of tokens at the beginning of that prompt that are here; whole blocks.
  int64_t Find(absl::Span<const uint64_t> blocks) const;
  bool Has(uint64_t block) const { return index_.contains(block); }
  // The prompt has been computed.
  void Touch(absl::Span<const uint64_t> blocks) { Enter(blocks, 0, true); }
  // A request will compute the prompt.
  void Await(absl::Span<const uint64_t> blocks) { Enter(blocks, 1, false); }
  // An awaited prompt was computed and its request has ended; or only these blocks of it were computed, and
  // no more follow.
  void Complete(absl::Span<const uint64_t> blocks) { Enter(blocks, -1, true); }
  void Withdraw(absl::Span<const uint64_t> blocks, size_t computed);
  // Memory was used by tokens that cannot be shared: generated ones, and the end of a prompt that fills no
  // block.
  void Write(int64_t tokens);
  void SetMostEntries(int64_t most_entries);

  // Tokens that the entries represent. Tokens outside blocks are entered once they would fill a block.
  int64_t tokens() const { return tokens_; }
  int64_t entries() const { return static_cast<int64_t>(nodes_.size() - unused_.size()); }
  // Number of entries for which memory is allocated.
  int64_t allocated_entries() const { return static_cast<int64_t>(nodes_.size()); }

 private:
  using Index = uint32_t;
  static constexpr Index kNone = ~Index{0};
  // Entry of the list from the most to the least recently used.
  struct Node {
    // Name of the block; unused for tokens outside blocks.
    uint64_t block = 0;
    int64_t tokens = 0;
    bool named = false;
    bool computed = false;
    // Number of requests that await it: they came since it is here, and are neither complete nor withdrawn.
    int32_t awaited = 0;
    Index newer = kNone, older = kNone;
  };

  // Makes the blocks the most recently used; adds `awaited` to the number of requests that await them.
  void Enter(absl::Span<const uint64_t> blocks, int32_t awaited, bool computed);
  Index PushFront(uint64_t block, int64_t tokens, bool named);
  void LinkFront(Index at);
  void Unlink(Index at);
  void Remove(Index at);
  void Shrink();

  int64_t capacity_tokens_;
  int64_t most_entries_;
  int64_t tokens_ = 0;
  // Tokens outside blocks that are not entered yet.
  int64_t loose_ = 0;
  absl::flat_hash_map<uint64_t, Index> index_;
  std::vector<Node> nodes_;
  std::vector<Index> unused_;
  Index newest_ = kNone, oldest_ = kNone;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHE_H_
