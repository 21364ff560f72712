// Whether one worker's KV memory suffices for its running requests until they end, and for one more request.
//
// Purpose: the memory inequality (1) of "Online Scheduling for LLM Inference with KV Cache Constraints"
// without a scan of the running requests. A request that starts in round p with s prompt tokens and generates
// o tokens holds s + (t - p) tokens at time t, p <= t <= p + o: a line of slope 1 that ends at p + o. The
// profile is the sum of these lines at every future time, stored as a kinetic segment tree over a ring of
// times. Adding a line raises a range by b + t, and whether one more fits is the maximum over a range of (sum
// + t). Both take O(log^2 W) amortised steps for a window of W rounds; removing a request before its end
// takes O(W).
//
// Time is in rounds (decode steps), sizes in tokens. A copyable value; not thread-safe: queries update the
// tree, too.
#ifndef BFIO_TOOLS_SIM_ADMISSION_KV_PROFILE_H_
#define BFIO_TOOLS_SIM_ADMISSION_KV_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bfio::sim {

// The tokens that a request holds over time: size + t at each time t from `from` to `to`, both included.
struct KvLine {
  int64_t size = 0;
  int64_t from = 0, to = 0;

  int64_t At(int64_t t) const { return from <= t && t <= to ? size + t : 0; }
};

class KvProfile {
 public:
  // Starts at time 0. Lines that end more than `window` rounds ahead are accepted too: the window grows.
  explicit KvProfile(int64_t window = 63);

  int64_t now() const { return now_; }
  // Advances the time to `now`; earlier times are dropped. REQUIRES: now >= now().
  void Advance(int64_t now);

  // REQUIRES: now() <= line.to. The part of the line before now() is ignored.
  void Add(const KvLine& line);
  // Removes a line that was added, or its last part, at the same or a later now().
  void Remove(const KvLine& line);

  // The largest sum at any time within [from, to]; 0 without lines. REQUIRES: now() <= from <= to.
  int64_t Peak(int64_t from, int64_t to) const;
  // The peak over the line's own times if it were added; it must not exceed the memory.
  int64_t PeakWith(const KvLine& line) const;
  // The sum at `t`.
  int64_t At(int64_t t) const { return Peak(t, t); }

 private:
  // The sum at a time t, as a function of how many further lines cross it: value + t per line.
  struct Best {
    int64_t value = 0, time = 0;
  };
  struct Node {
    // Of the times below: the largest value; among equals the latest time.
    Best best;
    // Number of further lines that can be added with `best` still the largest.
    int64_t lasts = 0;
    // Changes not yet applied to the children: `size`, and `lines` times t, are added to each value.
    int64_t size = 0, lines = 0;
  };

  void Change(int64_t from, int64_t to, int64_t size, int lines);
  void Change(size_t node, int64_t left, int64_t right, int64_t from, int64_t to, int64_t size, int lines);
  int64_t Ask(size_t node, int64_t left, int64_t right, int64_t from, int64_t to, int lines) const;
  int64_t AskRing(int64_t from, int64_t to, int lines) const;
  void Apply(Node& node, int64_t size, int64_t lines) const;
  void Push(size_t node) const;
  void Pull(size_t node) const;
  void SetTime(int64_t slot, int64_t time);
  void Grow(int64_t window);

  int64_t window_ = 0;  // a power of two
  int64_t now_ = 0;
  // Mutable, because queries apply pending changes to the children.
  mutable std::vector<Node> nodes_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_KV_PROFILE_H_
