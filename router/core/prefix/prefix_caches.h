// Models of the prefix caches of a group's workers, and how far each model can be trusted. Updates the model
// of each worker's cache with placements, ends and epochs, and compares it with what workers
// report (CachedPrompt). A worker may find less than expected: it evicts earlier, or its prefix caching is
// switched off. Expected tokens are therefore multiplied by the share of them that the worker has found in
// its recent prompts. Ownership: a group's accounts. Not saved with them: after a restart the caches are
// assumed to be empty. Threads: one. Units: tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "router/core/model/fading_mean.h"
#include "router/core/model/prefix_blocks.h"
#include "router/core/model/request.h"

namespace bfio::core {

// A model of one worker's prefix cache: the blocks of earlier prompts whose KV it is expected to hold. An
// engine keeps the KV of ended requests until it needs the memory, and for a prompt that shares a prefix with
// an earlier one it computes only the rest. The router cannot read that cache, so it models it: all blocks of
// a prompt are there once the prompt was placed, generated tokens also take memory, and the least recently
// used blocks are evicted first. Engines evict by the same rule (vLLM: free blocks, least recently used
// first). Blocks that a request should have computed and has not are removed when it ends, unless other
// requests will compute them. A block is touched together with all blocks before it and counts as used later
// than those behind it. So when a block is here, all blocks before it in its prompt are here, and the number
// of a prompt's blocks that are here is found by bisection. (When a block is evicted while requests await it,
// these requests are no longer counted. If the block returns and they are withdrawn, it may be removed
// although later requests await it.) Threads: one. Units: tokens. Cost: Find takes O(log blocks) look-ups,
// Touch O(blocks). Memory: 64 to 99 bytes (measured) per entry of the largest number ever held at once. That
// number is at most most_entries, and up to twice that while a prompt is being touched.
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
  // Removes the least recently used share, in parts per million.
  void Lose(int64_t ppm);
  // The worker says which blocks it holds: from now on memory that others use removes none.
  void Change(absl::Span<const PrefixChange> changes);

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
  bool told_ = false;
  int64_t tokens_ = 0;
  // Tokens outside blocks that are not entered yet.
  int64_t loose_ = 0;
  // Tokens to be removed, less than an entry has, times a million.
  int64_t owed_ = 0;
  absl::flat_hash_map<uint64_t, Index> index_;
  std::vector<Node> nodes_;
  std::vector<Index> unused_;
  Index newest_ = kNone, oldest_ = kNone;
};

class PrefixCaches {
 public:
  // Bound on the entries of all workers of a group together: 67 million tokens, and 67 to 104 MB .
  static constexpr int64_t kMostEntries = int64_t{1} << 20;

  struct Member {
    // WorkerSpec.
    uint64_t member = 0;
    bool prefix_cache = false;
    int64_t kv_tokens = 0;
  };

  // Starts a new epoch with these workers. A member that stays keeps its model.
  void Open(absl::Span<const Member> members);

  // At least one worker has a prefix cache.
  bool any() const { return any_; }

  // The worker has a prefix cache.
  bool Follows(WorkerIndex worker) const { return workers_[static_cast<size_t>(worker)].member.prefix_cache; }

  // Find: number of tokens of such a prompt that the worker has according to the placements there; whole
  // blocks, less than the prompt. The second: the number that it is expected to have, given its trust.
  int64_t Find(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t prompt_tokens) const;
  int64_t Expected(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t prompt_tokens) const;
  // Whether the worker has that block, and therefore all blocks before it.
  bool Has(WorkerIndex worker, uint64_t block) const {
    return workers_[static_cast<size_t>(worker)].cache.Has(block);
  }
  // Number of expected tokens where Find returns `found`.
  int64_t Trusted(WorkerIndex worker, int64_t found) const;
  // The recent share of the tokens given by Find that the worker has found, 0 .. 1.
  double Trust(WorkerIndex worker) const { return workers_[static_cast<size_t>(worker)].trust; }

  // A prompt of `prompt_tokens` tokens was placed there.
  void Placed(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t prompt_tokens);
  // The two ends of a request that was placed. The first: its prompt is computed, and it has ended or was
  // removed after this many generated tokens. The second: it was removed earlier, when this many tokens of
  // its prompt were computed.
  void Ended(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t generated_tokens);
  void Withdrawn(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t computed_tokens);
  // The worker found `found` tokens of a prompt for which Find returned `expected` when it was placed.
  void Observed(WorkerIndex worker, int64_t expected, int64_t found);
  // The worker has lost that share of its cache, in parts per million.
  void Lost(WorkerIndex worker, int64_t ppm) { workers_[static_cast<size_t>(worker)].cache.Lose(ppm); }
  // The worker's cache has changed so, in this order.
  void Changed(WorkerIndex worker, absl::Span<const PrefixChange> changes);

 private:
  struct Worker {
    Member member;
    // Empty where the worker has no cache.
    PrefixCache cache{0, 0};
    double trust = 1;
    // Tokens per prompt: those that Find returned, and those that the worker found.
    FadingMean expected, found;
  };

  std::vector<Worker> workers_;
  bool any_ = false;
};

}  // namespace bfio::core
