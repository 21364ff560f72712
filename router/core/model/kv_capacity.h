// Capacity of the workers' KV memory at several future times, while a decision is made. A request's KV grows
// while others end, so whether another request may start is not a comparison of two numbers. Admission
// (router/core/admission/kv_admission.h) states, for several future times, what each request may need and
// what each worker has left; FreeCapacity (free_capacity.h) keeps every decision within it. For each time
// there may be several ways to show that memory suffices, each with its own needs and capacity. A set of
// requests fits a worker when for every time there is a way whose needs add up to at most its capacity. Needs
// are added and removed exactly, so a search may exchange requests without calling admission again.
//
// Ownership: borrows the outlook's needs. Threads: one. Units: tokens. Cost: O(times * ways) per question.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace bfio::core {

// A request's demand on a worker's KV memory in two forms; satisfying either is enough.
struct KvDemand {
  // All KV tokens that the request may come to hold.
  int64_t reserve_tokens = 0;
  // The request's row of KvOutlook::need.
  int32_t row = 0;
};

// KV tokens that a worker holds beyond its memory of `kv_tokens`, because requests share the blocks of their
// prompts: `decoding` requests, of `decoding_tokens` tokens, and the prompts under way use `used` tokens of
// it. n requests can share at most the KV of n - 1 of them. 0: the worker reports no use.
inline int64_t SharedKvTokens(int64_t decoding, int64_t decoding_tokens, int64_t used, int64_t kv_tokens) {
  if (used <= 0) return 0;
  const double times = std::min(static_cast<double>(decoding_tokens) / static_cast<double>(used),
                                static_cast<double>(decoding));
  constexpr double kMost = int64_t{1} << 40;
  return static_cast<int64_t>(std::clamp((times - 1) * static_cast<double>(kv_tokens), 0.0, kMost));
}

// A row has times * ways entries; the ways of one time are adjacent. Empty: only reservations count.
struct KvOutlook {
  int32_t times = 0;
  int32_t ways = 0;
  // Capacity of a worker: entries from worker * row() on.
  absl::Span<const int64_t> capacity;
  // Need of a request: entries from its row (WaitingView::kv_need) * row() on.
  absl::Span<const int64_t> need;

  bool empty() const { return times == 0; }
  size_t row() const { return static_cast<size_t>(times) * static_cast<size_t>(ways); }
};

// Needs that were found to fit no worker, while capacity only shrinks. A request whose needs are the same or
// larger, entry by entry, is not tested again. Ownership: borrows the outlook's needs.
class KvRefusals {
 public:
  void Reset(const KvOutlook& outlook) {
    outlook_ = outlook;
    const size_t rows = outlook.empty() ? 1 : outlook.need.size() / outlook.row();
    least_.assign(rows, std::numeric_limits<int64_t>::max());
    kept_.clear();
  }
  // Whether a request with these needs and this reservation is known to fit no worker.
  bool Refused(int32_t need, int64_t reserve) {
    int64_t& least = least_[Row(need)];
    if (reserve >= least) return true;
    for (const int32_t other : kept_) {
      if (reserve < least_[Row(other)] || !NeedsNoLess(need, other)) continue;
      least = reserve;
      return true;
    }
    return false;
  }
  // Notes that such a request fits no worker.
  void Note(int32_t need, int64_t reserve) {
    int64_t& least = least_[Row(need)];
    least = std::min(least, reserve);
    if (outlook_.empty()) return;
    std::erase_if(kept_,
                  [&](int32_t other) { return least_[Row(other)] >= least && NeedsNoLess(other, need); });
    if (kept_.size() == kKept) kept_.erase(kept_.begin());
    kept_.push_back(need);
  }

 private:
  // Number of refused rows that others are compared with. A few suffice, because the needs of requests with
  // one length distribution are ordered.
  static constexpr size_t kKept = 4;

  size_t Row(int32_t need) const { return outlook_.empty() ? 0 : static_cast<size_t>(need); }
  bool NeedsNoLess(int32_t need, int32_t other) const {
    const int64_t* const more = outlook_.need.data() + Row(need) * outlook_.row();
    const int64_t* const less = outlook_.need.data() + Row(other) * outlook_.row();
    for (size_t i = 0; i < outlook_.row(); ++i) {
      if (more[i] < less[i]) return false;
    }
    return true;
  }

  KvOutlook outlook_;
  // By row of needs (one row without an outlook): the smallest reservation that was refused.
  std::vector<int64_t> least_;
  std::vector<int32_t> kept_;
};

class KvCapacity {
 public:
  // `outlook.need` must outlive all later calls.
  void Reset(const KvOutlook& outlook) {
    outlook_ = outlook;
    left_.assign(outlook.capacity.begin(), outlook.capacity.end());
  }
  bool empty() const { return outlook_.empty(); }
  // The outlook with the remaining capacity; valid until the next change.
  KvOutlook Left() const { return {outlook_.times, outlook_.ways, left_, outlook_.need}; }

  // Whether the worker can take the request in addition to those it has been given. False when empty().
  bool Fits(int32_t need, int32_t worker) const {
    const int64_t* const coming = Need(need);
    return Holds(worker, [&](size_t i) { return coming[i]; });
  }
  // Whether the worker could take `coming` if `leaving` were removed from it.
  bool FitsInstead(int32_t coming, int32_t leaving, int32_t worker) const {
    const int64_t* const in = Need(coming);
    const int64_t* const out = Need(leaving);
    return Holds(worker, [&](size_t i) { return in[i] - out[i]; });
  }
  // Minimum over all needs, entry by entry. Empty when there are none.
  std::vector<int64_t> LeastNeed() const {
    const size_t row = outlook_.row(), size = outlook_.need.size();
    std::vector<int64_t> least(outlook_.need.begin(), outlook_.need.begin() + std::min(row, size));
    for (size_t at = row; at < size; at += row) {
      for (size_t i = 0; i < row; ++i) least[i] = std::min(least[i], outlook_.need[at + i]);
    }
    return least;
  }
  // Upper bound of the number of further requests that fit the worker if each needs at least `least`.
  // REQUIRES: !empty().
  int64_t MostThatFit(absl::Span<const int64_t> least, int32_t worker) const {
    const int64_t* const capacity = &left_[static_cast<size_t>(worker) * outlook_.row()];
    int64_t most = std::numeric_limits<int64_t>::max();
    size_t i = 0;
    for (int32_t time = 0; time < outlook_.times; ++time) {
      int64_t by_time = 0;
      for (int32_t way = 0; way < outlook_.ways; ++way, ++i) {
        if (capacity[i] < 0) continue;
        by_time =
            std::max(by_time, least[i] > 0 ? capacity[i] / least[i] : std::numeric_limits<int64_t>::max());
      }
      most = std::min(most, by_time);
    }
    return most;
  }
  // Gives the request to the worker (sign 1) or removes it (sign -1).
  void Put(int32_t need, int32_t worker, int64_t sign) {
    if (empty()) return;
    const int64_t* const needs = Need(need);
    int64_t* const capacity = &left_[static_cast<size_t>(worker) * outlook_.row()];
    for (size_t i = 0; i < outlook_.row(); ++i) capacity[i] -= sign * needs[i];
  }

 private:
  const int64_t* Need(int32_t need) const {
    return outlook_.need.data() + static_cast<size_t>(need) * outlook_.row();
  }
  template <class Added>
  bool Holds(int32_t worker, Added added) const {
    if (empty()) return false;
    const int64_t* const capacity = &left_[static_cast<size_t>(worker) * outlook_.row()];
    size_t i = 0;
    for (int32_t time = 0; time < outlook_.times; ++time) {
      bool holds = false;
      for (int32_t way = 0; way < outlook_.ways; ++way, ++i) holds = holds || added(i) <= capacity[i];
      if (!holds) return false;
    }
    return true;
  }

  KvOutlook outlook_;
  std::vector<int64_t> left_;
};

}  // namespace bfio::core
