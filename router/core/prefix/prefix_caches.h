// Models of the prefix caches of a group's workers, and how far each model can be trusted.
//
// Purpose: updates the model of each worker's cache (prefix_cache.h) with placements, ends and epochs, and
// compares it with what workers report (CachedPrompt). A worker may find less than expected: it evicts
// earlier, or its prefix caching is switched off. Expected tokens are therefore multiplied by the share of
// them that the worker has found in its recent prompts.
//
// Ownership: a group's accounts. Not saved with them: after a restart the caches are assumed to be empty.
// Threads: one. Units: tokens.
#ifndef BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHES_H_
#define BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/fading_mean.h"
#include "router/core/model/request.h"
#include "router/core/prefix/prefix_cache.h"

namespace bfio::core {

class PrefixCaches {
 public:
  // Bound on the entries of all workers of a group together: 67 million tokens, and 67 to 104 MB
  // (prefix_cache.h).
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

#endif  // BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHES_H_
