// MC-SF: shortest first, while memory suffices until every end; incremental, for one memory.
//
// Purpose: the test of Algorithms 1 and 2 of "Online Scheduling for LLM Inference with KV Cache Constraints",
// for the router's admission (kv_admission.h) and the paper's experiments (research/admission). A request may
// begin if, at the end of every request, what all requests hold fits in memory (equation (1)). Between ends
// this sum only grows, so it suffices to test the ends (kv_profile.h).
//
// Time in steps, sizes in tokens. Cost of McSf, with n requests of whatever length: memory O(n), O(log n) for
// one that begins, ends or changes its course, O(n) to test another. Pure, deterministic. Threads: one.
#ifndef BFIO_ROUTER_CORE_ADMISSION_MC_SF_H_
#define BFIO_ROUTER_CORE_ADMISSION_MC_SF_H_

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "router/core/admission/kv_profile.h"

namespace bfio::core {

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

#endif  // BFIO_ROUTER_CORE_ADMISSION_MC_SF_H_
