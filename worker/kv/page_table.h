// The page table of a paged KV cache: which pages hold which sequence's tokens.
//
// Purpose: the host side of the cache, the same for CPU and GPU: it holds no tensors. A sequence reserves
// capacity for all it may ever need when it is admitted, so a running one never runs out, or for less and
// extends its reservation before it grows beyond; pages are taken as it grows.
//
// Capacity is counted in tokens, as the router counts it: the router does not count pages, and a request that
// fits in its account must fit here. A sequence's last page may be part empty, so the pool has a page more
// per sequence than the tokens need: page_limit() = capacity / page size + sequences. By that, whatever is
// reserved can always be served:
//     sum of ceil(r / p)  <=  sum of floor(r / p) + sequences  <=  floor(capacity / p) + sequences.
//
// Costs: O(1) per page, and no memory is allocated after Admit and Extend. Pure; one thread.
#ifndef BFIO_WORKER_KV_PAGE_TABLE_H_
#define BFIO_WORKER_KV_PAGE_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/kv/page_pool.h"

namespace bfio::worker {

// Names an admitted sequence: 0 .. max_sequences - 1; used again after Release.
using SequenceIndex = int32_t;

struct PageTableOptions {
  // Tokens a page holds, at least 1.
  int32_t page_tokens = 16;
  // Tokens that may be reserved at a time, at least 1.
  int64_t capacity_tokens = 0;
  // Sequences at a time, at least 1.
  int32_t max_sequences = 0;
};

struct PageTableStats {
  int32_t pages = 0;
  int32_t pages_taken = 0;
  // Since the start.
  int32_t peak_pages_taken = 0;
  int32_t sequences = 0;
  int64_t capacity_tokens = 0;
  int64_t reserved_tokens = 0;
  // Capacity of the pages taken, in tokens.
  int64_t resident_tokens = 0;
  int64_t admitted_total = 0;
  int64_t released_total = 0;
};

class PageTable {
 public:
  // INVALID_ARGUMENT when an option is out of range, or the cache would have more than 2^31 - 1 pages. Takes
  // no memory.
  static absl::Status Check(const PageTableOptions& options);
  // The same errors.
  static absl::StatusOr<PageTable> Create(const PageTableOptions& options);

  // Pages a cache of these options must have. REQUIRES: options are in range.
  static int64_t PageLimit(const PageTableOptions& options);

  // Reserves `tokens` tokens, at least 1. RESOURCE_EXHAUSTED when so much is not free now, or all
  // sequences are in use; INVALID_ARGUMENT when it can never be.
  absl::StatusOr<SequenceIndex> Admit(int64_t tokens);

  // Raises the sequence's reservation to `tokens`, if that is more. RESOURCE_EXHAUSTED when so much is not
  // free now; FAILED_PRECONDITION when the index is not in use.
  absl::Status Extend(SequenceIndex sequence, int64_t tokens);

  // Allocates the sequence's tokens [0, tokens); what it holds already stays. Never fails within the
  // reservation: OUT_OF_RANGE beyond it, FAILED_PRECONDITION when the index is not in use.
  absl::Status Grow(SequenceIndex sequence, int64_t tokens);

  // Gives pages and reservation back. FAILED_PRECONDITION when the index is not in use (a double free).
  absl::Status Release(SequenceIndex sequence);

  // Page of token t: pages(sequence)[t / page_tokens], at place t % page_tokens. Valid until the sequence
  // grows or ends. Empty when the index is not in use.
  absl::Span<const PageId> pages(SequenceIndex sequence) const;
  int64_t reserved(SequenceIndex sequence) const { return sequences_[sequence].reserved; }
  // Unused capacity, in tokens.
  int64_t tokens(SequenceIndex sequence) const { return sequences_[sequence].tokens; }

  int32_t page_tokens() const { return options_.page_tokens; }
  int32_t page_limit() const { return pool_.size(); }
  // Not reserved.
  int64_t free_tokens() const { return options_.capacity_tokens - stats_.reserved_tokens; }
  PageTableStats stats() const;

  // Looks for leaks and pages with two owners; O(pages). INTERNAL, naming the page, when there is one.
  absl::Status Audit() const;

 private:
  struct Sequence {
    // 0: the index is not in use.
    int64_t reserved = 0;
    int64_t tokens = 0;
    std::vector<PageId> pages;
  };

  explicit PageTable(const PageTableOptions& options);

  bool InUse(SequenceIndex sequence) const {
    return sequence >= 0 && sequence < options_.max_sequences && sequences_[sequence].reserved > 0;
  }

  PageTableOptions options_;
  PagePool pool_;
  std::vector<Sequence> sequences_;
  // A stack of unused indices.
  std::vector<SequenceIndex> unused_;
  // Less what stats() adds.
  PageTableStats stats_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_KV_PAGE_TABLE_H_
