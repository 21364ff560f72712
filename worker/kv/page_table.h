// The page table of a paged KV cache: which pages hold which sequence's tokens; it holds no tensors. On
// admission a sequence reserves capacity for all tokens it may ever need; or it reserves less and extends the
// reservation before it grows beyond it. Pages are taken as the sequence grows. Capacity is counted in
// tokens, as in the router. The last page of a sequence may be partly empty, so the pool has one more page
// per sequence than the tokens need, and every reservation can be served:
//   sum of ceil(r / p) <= sum of floor(r / p) + sequences <= floor(capacity / p) + sequences
// O(1) per page; nothing is allocated after Admit and Extend. Pure; used by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/kv/page_pool.h"

namespace bfio::worker {

// Index of an admitted sequence: 0 .. max_sequences - 1; reused after Release.
using SequenceIndex = int32_t;

struct PageTableOptions {
  // Tokens per page, at least 1.
  int32_t page_tokens = 16;
  // Tokens that may be reserved at the same time, at least 1.
  int64_t capacity_tokens = 0;
  // Sequences that may be admitted at the same time, at least 1.
  int32_t max_sequences = 0;
};

struct PageTableStats {
  int32_t pages = 0;
  int32_t pages_taken = 0;
  // The largest pages_taken since the start.
  int32_t peak_pages_taken = 0;
  int32_t sequences = 0;
  int64_t capacity_tokens = 0;
  int64_t reserved_tokens = 0;
  // Tokens that sequences have pages for (Grow).
  int64_t resident_tokens = 0;
  int64_t admitted_total = 0;
  int64_t released_total = 0;
};

class PageTable {
 public:
  // INVALID_ARGUMENT when an option is out of range, or the cache would have more than 2^31 - 1 pages.
  // Allocates nothing.
  static absl::Status Check(const PageTableOptions& options);
  // Returns the errors of Check.
  static absl::StatusOr<PageTable> Create(const PageTableOptions& options);

  // Number of pages that a cache with these options must have. REQUIRES: options are in range.
  static int64_t PageLimit(const PageTableOptions& options);

  // Reserves `tokens` tokens, at least 1. RESOURCE_EXHAUSTED when they are not free now, or all sequences are
  // in use; INVALID_ARGUMENT when they can never be.
  absl::StatusOr<SequenceIndex> Admit(int64_t tokens);

  // Raises the sequence's reservation to `tokens`, if that is more. RESOURCE_EXHAUSTED when they are not free
  // now; FAILED_PRECONDITION when the index is not in use.
  absl::Status Extend(SequenceIndex sequence, int64_t tokens);

  // Takes pages for the sequence's tokens [0, tokens) and keeps those that it has. Never fails within the
  // reservation. OUT_OF_RANGE beyond it; FAILED_PRECONDITION when the index is not in use.
  absl::Status Grow(SequenceIndex sequence, int64_t tokens);

  // Frees the pages and the reservation. FAILED_PRECONDITION when the index is not in use (a double free).
  absl::Status Release(SequenceIndex sequence);

  // The page of token t is pages(sequence)[t / page_tokens]; its offset there is t % page_tokens. Valid until
  // the sequence grows or is released. Empty when the index is not in use.
  absl::Span<const PageId> pages(SequenceIndex sequence) const;
  int64_t reserved(SequenceIndex sequence) const { return sequences_[sequence].reserved; }
  // Tokens that the sequence has pages for (Grow).
  int64_t tokens(SequenceIndex sequence) const { return sequences_[sequence].tokens; }

  int32_t page_tokens() const { return options_.page_tokens; }
  // Tokens that are not reserved.
  int64_t free_tokens() const { return options_.capacity_tokens - stats_.reserved_tokens; }
  PageTableStats stats() const;

  // Checks for leaked pages and pages with two owners; O(pages). INTERNAL, naming the page, when there is
  // one.
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
  // A stack of unused sequence indices.
  std::vector<SequenceIndex> unused_;
  // Without the fields that stats() computes.
  PageTableStats stats_;
};

}  // namespace bfio::worker
