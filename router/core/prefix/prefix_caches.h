// The prefix caches of a group's workers, and how far what is expected of them can be trusted.
//
// Purpose: follows each worker's cache (prefix_cache.h) through placements, ends and epochs, and compares
// what was expected with what workers report (CachedPrompt). A worker that finds less than expected (it
// evicts earlier, or its prefix caching is switched off) is trusted less: what is expected of it is
// multiplied by the share that it has found of the tokens that were expected in its last prompts.
//
// Ownership: of a group's accounts. Not saved with them: after a restart the caches are taken to be empty.
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
  // Entries of all workers of a group together: 67 million tokens, and 67 to 104 MB (prefix_cache.h).
  static constexpr int64_t kMostEntries = int64_t{1} << 20;

  struct Member {
    // WorkerSpec.
    uint64_t member = 0;
    bool prefix_cache = false;
    int64_t kv_tokens = 0;
  };

  // A new epoch with these workers. Those that were there keep what is known of them.
  void Open(absl::Span<const Member> members);

  // Some worker has a prefix cache.
  bool any() const { return any_; }

  // The worker has one.
  bool Follows(WorkerIndex worker) const { return workers_[static_cast<size_t>(worker)].member.prefix_cache; }

  // How many tokens of such a prompt the worker has by what was placed there; whole blocks, less than the
  // prompt. And how many it is expected to have.
  int64_t Find(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t prompt_tokens) const;
  int64_t Expected(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t prompt_tokens) const;
  // Whether the worker has that block, and so all before it.
  bool Has(WorkerIndex worker, uint64_t block) const {
    return workers_[static_cast<size_t>(worker)].cache.Has(block);
  }
  // What is expected where Find says `found`.
  int64_t Trusted(WorkerIndex worker, int64_t found) const;
  // The share of Find that the worker has found lately, 0 .. 1.
  double Trust(WorkerIndex worker) const { return workers_[static_cast<size_t>(worker)].trust; }

  // A prompt of so many tokens was placed there.
  void Placed(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t prompt_tokens);
  // Its request has computed it, and has ended or was removed after so many tokens. Or it has been removed
  // before, when so many tokens of it were computed.
  void Ended(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t generated_tokens);
  void Withdrawn(WorkerIndex worker, absl::Span<const uint64_t> prefix, int64_t computed_tokens);
  // The worker found so many tokens of a prompt for which Find had said `expected` when it was placed.
  void Observed(WorkerIndex worker, int64_t expected, int64_t found);

 private:
  struct Worker {
    Member member;
    // Without blocks where it has no cache.
    PrefixCache cache{0, 0};
    double trust = 1;
    // Tokens of a prompt that it had by what was placed there, and that it found.
    FadingMean expected, found;
  };

  std::vector<Worker> workers_;
  bool any_ = false;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_PREFIX_PREFIX_CACHES_H_
