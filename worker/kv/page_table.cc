#include "worker/kv/page_table.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace bfio::worker {
namespace {

int64_t PagesOf(int64_t tokens, int64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

absl::Status Unknown(SequenceIndex sequence) {
  return absl::FailedPreconditionError(absl::StrCat("no sequence has index ", sequence));
}

}  // namespace

absl::Status PageTable::Check(const PageTableOptions& options) {
  const auto invalid = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (options.page_tokens < 1) return invalid("page size must be at least 1, not ", options.page_tokens);
  if (options.capacity_tokens < 1) {
    return invalid("KV capacity must be at least 1 token, not ", options.capacity_tokens);
  }
  if (options.max_sequences < 1) return invalid("sequences must be at least 1, not ", options.max_sequences);
  if (PageLimit(options) > std::numeric_limits<PageId>::max()) {
    return invalid("a KV capacity of ", options.capacity_tokens, " tokens is more than 2^31 - 1 pages of ",
                   options.page_tokens);
  }
  return absl::OkStatus();
}

absl::StatusOr<PageTable> PageTable::Create(const PageTableOptions& options) {
  if (absl::Status status = Check(options); !status.ok()) return status;
  return PageTable(options);
}

int64_t PageTable::PageLimit(const PageTableOptions& options) {
  return options.capacity_tokens / options.page_tokens + options.max_sequences;
}

PageTable::PageTable(const PageTableOptions& options)
    : options_(options),
      pool_(static_cast<int32_t>(PageLimit(options))),
      sequences_(static_cast<size_t>(options.max_sequences)) {
  for (SequenceIndex i = options.max_sequences - 1; i >= 0; --i) unused_.push_back(i);
}

absl::StatusOr<SequenceIndex> PageTable::Admit(int64_t tokens) {
  if (tokens < 1) return absl::InvalidArgumentError(absl::StrCat("cannot reserve ", tokens, " tokens"));
  if (tokens > options_.capacity_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens, " tokens exceed the KV capacity of ", options_.capacity_tokens));
  }
  if (unused_.empty()) return absl::ResourceExhaustedError("no free slot");
  if (tokens > free_tokens()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("needs ", tokens, " KV tokens, ", free_tokens(), " are free"));
  }
  const SequenceIndex index = unused_.back();
  unused_.pop_back();
  Sequence& sequence = sequences_[index];
  sequence.reserved = tokens;
  sequence.pages.reserve(static_cast<size_t>(PagesOf(tokens, options_.page_tokens)));
  stats_.reserved_tokens += tokens;
  ++stats_.sequences;
  ++stats_.admitted_total;
  return index;
}

absl::Status PageTable::Extend(SequenceIndex index, int64_t tokens) {
  if (!InUse(index)) return Unknown(index);
  Sequence& sequence = sequences_[index];
  const int64_t more = tokens - sequence.reserved;
  if (more <= 0) return absl::OkStatus();
  if (more > free_tokens()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("needs ", more, " more KV tokens, ", free_tokens(), " are free"));
  }
  sequence.reserved = tokens;
  // Grows by doubling: reservations that grow token by token would otherwise copy the list at every page.
  const auto pages = static_cast<size_t>(PagesOf(tokens, options_.page_tokens));
  if (pages > sequence.pages.capacity()) {
    sequence.pages.reserve(std::max(pages, 2 * sequence.pages.capacity()));
  }
  stats_.reserved_tokens += more;
  return absl::OkStatus();
}

absl::Status PageTable::Grow(SequenceIndex index, int64_t tokens) {
  if (!InUse(index)) return Unknown(index);
  Sequence& sequence = sequences_[index];
  if (tokens > sequence.reserved) {
    return absl::OutOfRangeError(
        absl::StrCat("sequence ", index, " reserved ", sequence.reserved, " tokens and needs ", tokens));
  }
  if (tokens <= sequence.tokens) return absl::OkStatus();
  const auto needed = static_cast<size_t>(PagesOf(tokens, options_.page_tokens));
  while (sequence.pages.size() < needed) {
    const auto page = pool_.Take();
    // Cannot happen (see the header). Checked so that a bug does not write past the end of the cache.
    if (!page) return absl::InternalError("the KV cache has fewer pages than were reserved");
    sequence.pages.push_back(*page);
  }
  stats_.resident_tokens += tokens - sequence.tokens;
  sequence.tokens = tokens;
  stats_.peak_pages_taken = std::max(stats_.peak_pages_taken, pool_.taken());
  return absl::OkStatus();
}

absl::Status PageTable::Release(SequenceIndex index) {
  if (!InUse(index)) return Unknown(index);
  Sequence& sequence = sequences_[index];
  // In reverse order, so that the next sequence gets the pages in the same order.
  for (auto it = sequence.pages.rbegin(); it != sequence.pages.rend(); ++it) {
    if (!pool_.Return(*it)) {
      return absl::InternalError(absl::StrCat("page ", *it, " of sequence ", index, " was already free"));
    }
  }
  stats_.reserved_tokens -= sequence.reserved;
  stats_.resident_tokens -= sequence.tokens;
  --stats_.sequences;
  ++stats_.released_total;
  sequence.pages.clear();
  sequence.reserved = sequence.tokens = 0;
  unused_.push_back(index);
  return absl::OkStatus();
}

absl::Span<const PageId> PageTable::pages(SequenceIndex sequence) const {
  if (!InUse(sequence)) return {};
  return sequences_[sequence].pages;
}

PageTableStats PageTable::stats() const {
  PageTableStats stats = stats_;
  stats.pages = pool_.size();
  stats.pages_taken = pool_.taken();
  stats.capacity_tokens = options_.capacity_tokens;
  return stats;
}

absl::Status PageTable::Audit() const {
  std::vector<SequenceIndex> owner(static_cast<size_t>(pool_.size()), -1);
  int32_t owned = 0;
  for (SequenceIndex i = 0; i < options_.max_sequences; ++i) {
    const Sequence& sequence = sequences_[i];
    if (static_cast<int64_t>(sequence.pages.size()) != PagesOf(sequence.tokens, options_.page_tokens)) {
      return absl::InternalError(absl::StrCat("sequence ", i, " of ", sequence.tokens, " tokens has ",
                                              sequence.pages.size(), " pages"));
    }
    for (const PageId page : sequence.pages) {
      if (!pool_.IsTaken(page)) {
        return absl::InternalError(absl::StrCat("page ", page, " of sequence ", i, " is free"));
      }
      if (owner[page] >= 0) {
        return absl::InternalError(
            absl::StrCat("page ", page, " belongs to sequences ", owner[page], " and ", i));
      }
      owner[page] = i;
      ++owned;
    }
  }
  if (owned == pool_.taken()) return absl::OkStatus();
  for (PageId page = 0; page < pool_.size(); ++page) {
    if (pool_.IsTaken(page) && owner[page] < 0) {
      return absl::InternalError(absl::StrCat("page ", page, " is allocated but belongs to no sequence"));
    }
  }
  return absl::InternalError("the number of allocated pages is wrong");
}

}  // namespace bfio::worker
