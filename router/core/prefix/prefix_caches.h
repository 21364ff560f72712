// The prefix caches of a group's workers, as the router models them, and how reliable the models are.
//
// Purpose: follows each worker's cache (prefix_cache.h) through placements, ends and epochs, and compares the
// expected hits with those that workers report (CachedPrompt). If a worker finds less than expected (it
// evicts earlier, or its prefix caching is switched off), expectations for it are scaled down: they are
// multiplied by the share of expected tokens that it has found in its recent prompts.
//
// Ownership: part of a group's accounts. Not saved with them: after a restart the caches count as empty.
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
    // WorkerSpec::member.
    uint64_t member = 0;
    bool prefix_cache = false;
    int64_t kv_tokens = 0;
  };

  // A new epoch with these workers. Workers of the last epoch keep their modelled caches.
  void Open(absl::Span<const Member> members);

  // At least one worker has a prefix cache.
  bool any() const { return any_; }

  // The worker has a prefix cache.
  bool Follows(WorkerIndex worker) const { return workers_[static_cast<size_t>(worker)].member.prefix_cache; }

  // Tokens of such a prompt that the worker has from earlier placements (whole blocks, less than the prompt),
  // and the number that it is expected to have.
  int64_t Find(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t prompt_tokens) const;
  int64_t Expected(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t prompt_tokens) const;
  // Whether the worker has that block, and therefore all blocks before it.
  bool Has(WorkerIndex worker, uint64_t block) const {
    return workers_[static_cast<size_t>(worker)].cache.Has(block);
  }
  // The expected number of tokens where Find returns `found`.
  int64_t Trusted(WorkerIndex worker, int64_t found) const;
  // The share of Find's tokens that the worker has found recently, 0 .. 1.
  double Trust(WorkerIndex worker) const { return workers_[static_cast<size_t>(worker)].trust; }

  // A prompt of this many tokens was placed on the worker.
  void Placed(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t prompt_tokens);
  // Ended: its request has computed the prompt, and has ended or was removed after that many tokens. The
  // other: it was removed before, when that many tokens of the prompt were computed.
  void Ended(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t generated_tokens);
  void Withdrawn(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t computed_tokens);
  // The worker found `found` tokens of a prompt for which Find had returned `expected` when it was placed.
  void Observed(WorkerIndex worker, int64_t expected, int64_t found);

 private:
  struct Worker {
    Member member;
    // Holds no blocks where the worker has no cache.
    PrefixCache cache{0, 0};
    double trust = 1;
    // Tokens of recent prompts: those that it should have had by earlier placements, and those that it found.
    FadingMean expected, found;
  };

  std::vector<Worker> workers_;
  bool any_ = false;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHES_H_
