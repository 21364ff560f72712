// Whether one worker's KV memory carries what runs on it to completion, and one more request besides.
//
// Purpose: the memory inequality (1) of "Online Scheduling for LLM Inference with KV Cache Constraints"
// without scanning what runs. A request that starts in round p with s prompt tokens and o tokens to make
// holds s + (t - p) tokens at time t, p <= t <= p + o: a line of slope 1 that breaks off. The profile is the
// sum of these lines at every time to come, as a kinetic segment tree over a ring of times: adding a line
// raises a range by b + t, and asking whether one more fits is the maximum over a range of (sum + t). Both
// take O(log^2 W) amortised steps for a window of W rounds; taking a request out before its end O(W).
//
// Time is in rounds (decode steps), sizes in tokens. A copyable value; not thread-safe: asking
// hands down what waits in the tree.
#ifndef BFIO_TOOLS_SIM_ADMISSION_KV_PROFILE_H_
#define BFIO_TOOLS_SIM_ADMISSION_KV_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bfio::sim {

// What a request holds over time: size + t at each time t from `from` to `to`, both included.
struct KvLine {
  int64_t size = 0;
  int64_t from = 0, to = 0;

  int64_t At(int64_t t) const { return from <= t && t <= to ? size + t : 0; }
};

class KvProfile {
 public:
  // Starts at time 0. Lines that end more than `window` rounds ahead are taken too: the window grows.
  explicit KvProfile(int64_t window = 63);

  int64_t now() const { return now_; }
  // Advances the time to `now`; earlier times are dropped. REQUIRES: now >= now().
  void Advance(int64_t now);

  // REQUIRES: now() <= line.to. What of it lies before now() does not count.
  void Add(const KvLine& line);
  // Takes out a line that Add put in, or its last part, at the same or a later now().
  void Remove(const KvLine& line);

  // The largest sum at any time within [from, to], 0 where nothing is left. REQUIRES: now() <= from <= to.
  int64_t Peak(int64_t from, int64_t to) const;
  // Peak over the line's own times if it were added: what must not exceed the memory.
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
    // As many further lines leave `best` the largest.
    int64_t lasts = 0;
    // Still to be handed down: `size` and `lines` times t to each value.
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
  // What waits to be handed down is an implementation matter: asking may move it.
  mutable std::vector<Node> nodes_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_KV_PROFILE_H_
