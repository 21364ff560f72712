// MC-SF: shortest first, while memory suffices until every end; incremental, for one memory. The test of
// Algorithms 1 and 2 of "Online Scheduling for LLM Inference with KV Cache Constraints", for the router's
// admission (kv_admission.h) and the paper's experiments (research/admission). A request may begin if, at the
// end of every request, what all requests hold fits in memory (equation (1)). Between ends this sum only
// grows, so it suffices to test the ends. Time in steps, sizes in tokens. Cost of McSf, with n requests of
// whatever length: memory O(n), O(log n) for one that begins, ends or changes its course, O(n) to test
// another. Pure, deterministic. Threads: one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
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

// The KV memory that one worker's requests hold over time, and its maximum with one more: inequality (1) of
// the paper. A request that starts in round p with s prompt tokens and generates o tokens holds s + (t - p)
// tokens at time t, p <= t <= p + o; a prompt that is computed in chunks adds a steeper line before that one.
// Stored as the bends of the sum. Time in rounds (decode steps), sizes in tokens. With n lines: memory O(n),
// O(log n) to add or remove one, O(n) per query, whatever their lengths. Copyable; threads as a container.
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

// What a request holds from its first step to its last. A prompt that is computed in chunks fills memory as
// it is computed, and tokens are generated from the step on that computes its end.
struct KvCourse {
  // The step that computes the first of its prompt.
  int64_t begin = 0;
  // Its prompt: what it holds in the first step that generates a token.
  int64_t prompt = 0;
  // Number of steps that generate tokens, at least 1; each but the first adds a token to what it holds.
  int64_t output = 1;
  // Prompt tokens that a step computes; 0: all of them.
  int64_t chunk = 0;
  // Number of steps after its last token in which it may still hold all its tokens.
  int64_t late = 0;

  // The first step that generates a token.
  int64_t first() const { return begin + (chunk > 0 && prompt > chunk ? (prompt - 1) / chunk : 0); }
  // The last step in which it holds memory.
  int64_t last() const { return first() + output - 1 + late; }
  // Tokens that it holds at the end.
  int64_t size() const { return prompt + output - 1; }

  // The same as lines: the prompt, the generated tokens, and `late`. Empty ones end before they begin.
  std::array<KvLine, 3> Lines() const;
};

class McSf {
 public:
  // Starts at step 0.
  McSf() = default;

  int64_t now() const { return profile_.now(); }
  // REQUIRES: now >= now().
  void Advance(int64_t now) { profile_.Advance(now); }

  // The largest sum of the tokens of all requests in any step of this course, if it were added.
  int64_t PeakWith(const KvCourse& course) const;
  // The largest sum of their tokens in the steps from .. to. REQUIRES: now() <= from <= to.
  int64_t Peak(int64_t from, int64_t to) const { return profile_.Peak(from, to); }
  // peaks[k] becomes the largest sum from ahead[k] steps after now() until before ahead[k + 1]; the last peak
  // covers all later steps. REQUIRES: `ahead` begins with 0 and ascends; both have the same size.
  void Peaks(absl::Span<const int64_t> ahead, absl::Span<int64_t> peaks) const {
    profile_.Peaks(ahead, peaks);
  }
  int64_t At(int64_t step) const { return profile_.At(step); }

  // REQUIRES: !Find(id), course.last() >= now().
  void Add(uint64_t id, const KvCourse& course);
  // Records that the request did not end with its course and generates until step `last`. REQUIRES: Find(id),
  // a course without `late`, and last > course.last().
  void Extend(uint64_t id, int64_t last);
  // Records that the request holds nothing from step `from` on. REQUIRES: Find(id), from >= now().
  void Remove(uint64_t id, int64_t from);

  // Null if there is no such request.
  const KvCourse* Find(uint64_t id) const;
  // A request whose course ends before the step `step`; of several the one that ends first.
  std::optional<uint64_t> EndsBefore(int64_t step) const;
  // The last step of all courses; empty without requests.
  std::optional<int64_t> LastEnd() const;
  int64_t size() const { return static_cast<int64_t>(courses_.size()); }

 private:
  KvProfile profile_;
  absl::flat_hash_map<uint64_t, KvCourse> courses_;
  std::set<std::pair<int64_t, uint64_t>> ends_;
};

}  // namespace bfio::core
