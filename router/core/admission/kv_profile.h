// The KV memory that one worker's requests hold over time, and its maximum with one more request.
//
// Purpose: the memory inequality (1) of "Online Scheduling for LLM Inference with KV Cache Constraints". A
// request that starts in round p with s prompt tokens and generates o tokens holds s + (t - p) tokens at time
// t, p <= t <= p + o: a line of slope 1 that ends at p + o. A prompt of which a chunk is computed in each
// round adds a steeper line before that one. The profile is the sum of these lines, which bends only where
// one begins or ends, so it is stored as its bends.
//
// Time is in rounds (decode steps), sizes in tokens. With n lines: memory O(n), O(log n) to add or remove
// one, O(n) per query, whatever their lengths. A copyable value; threads as for a container.
#ifndef BFIO_ROUTER_CORE_ADMISSION_KV_PROFILE_H_
#define BFIO_ROUTER_CORE_ADMISSION_KV_PROFILE_H_

#include <algorithm>
#include <cstdint>

#include "absl/container/btree_map.h"
#include "absl/types/span.h"

namespace bfio::core {

// The tokens that a request holds over time: size + rate t at each time t from `from` to `to`, both included.
struct KvLine {
  int64_t size = 0;
  int64_t from = 0, to = 0;
  // Tokens per round, at least 0.
  int32_t rate = 1;

  int64_t At(int64_t t) const { return from <= t && t <= to ? size + rate * t : 0; }
};

class KvProfile {
 public:
  // Starts at time 0.
  KvProfile() = default;

  int64_t now() const { return now_; }
  // Advances the time to `now`; earlier times are dropped. REQUIRES: now >= now().
  void Advance(int64_t now);

  // REQUIRES: now() <= line.to. The part of the line before now() is ignored.
  void Add(const KvLine& line) { Change(line, {line.size, line.rate}); }
  // Removes a line that was added, or its last part, at the same or a later now().
  void Remove(const KvLine& line) {
    if (line.to >= now_) Change(line, {-line.size, -line.rate});
  }

  // The largest sum at any time within [from, to]; 0 without lines. REQUIRES: now() <= from <= to.
  int64_t Peak(int64_t from, int64_t to) const { return Peak(from, to, {}); }
  // peaks[k] becomes the largest sum from starts[k] rounds after now() until before starts[k + 1]; the last
  // peak covers all later times. REQUIRES: starts begin with 0 and ascend; both have the same size.
  void Peaks(absl::Span<const int64_t> starts, absl::Span<int64_t> peaks) const;
  // The peak over the line's own times if it were added. A request fits if this peak is within the memory.
  int64_t PeakWith(const KvLine& line) const {
    return Peak(std::max(line.from, now_), line.to, {line.size, line.rate});
  }
  // The sum at `t`.
  int64_t At(int64_t t) const { return Peak(t, t); }

 private:
  // size + rate t at time t.
  struct Sum {
    int64_t size = 0, rate = 0;

    int64_t At(int64_t t) const { return size + rate * t; }
    Sum operator-() const { return {-size, -rate}; }
    Sum& operator+=(const Sum& other) {
      size += other.size;
      rate += other.rate;
      return *this;
    }
  };

  void Change(const KvLine& line, const Sum& by);
  void Bend(int64_t at, const Sum& by);
  // The segment raised by `sum` at every time.
  int64_t Peak(int64_t from, int64_t to, Sum sum) const;

  int64_t now_ = 0;
  // Sum of the lines at now_.
  Sum here_;
  // Keys: times after now_. Values: what is added to the sum from that time on, never zero.
  absl::btree_map<int64_t, Sum> bends_;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_ADMISSION_KV_PROFILE_H_
