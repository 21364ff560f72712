// Rules that check memory until the end of all running requests: MC-SF, MC-Benchmark, and ours with a pace.
//
// Purpose: Algorithms 1 and 2 of the paper, equation (1), and two variants. With exact lengths memory never
// exceeds M. The paper's optimality claims fail (tests/unit/router/core/admission keeps the counterexamples):
// shortest-first fills memory in waves: similar requests that begin together end together, and until then
// their future memory is unused. The pace prevents this. M tokens support at most r = M / (s (o + 1) + o (o +
// 1) / 2) requests of s prompt and o output tokens a round in the long run, so of similar requests (total and
// output within a fifth) no more may end in any n rounds than r n and a part of one. One beyond that
// waits, and longer ones may pass it; requests of mixed lengths are hardly ever held back. The pace
// applies only while more than half the memory is reserved. Where requests end before their predicted length,
// r is larger by as much as those that ended lately took less.
//
// Predicted lengths: every request counts as `margin` tokens longer. One that exceeds even that
// counts as AdmissionOptions::lengths then predicts, or as a quarter longer, repeatedly, up to its
// limit. When memory is exceeded in spite of that, those that began last are preempted and resume with their
// generated tokens. The oldest is never preempted while it fits alone, so every request ends. One that ends
// early releases what was reserved for it.
#ifndef BFIO_TOOLS_SIM_ADMISSION_MEMORY_RULE_H_
#define BFIO_TOOLS_SIM_ADMISSION_MEMORY_RULE_H_

#include <set>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "tools/sim/admission/admission_rule.h"
#include "tools/sim/admission/kv_profile.h"

namespace bfio::sim {

struct MemoryRuleOptions {
  enum class Order { kShortestFirst, kArrival };
  Order order = Order::kShortestFirst;
  bool paced = false;
  // Tokens that a request may make beyond what is believed.
  int64_t margin = 0;
};

class MemoryRule final : public AdmissionRule {
 public:
  MemoryRule(const AdmissionOptions& options, const MemoryRuleOptions& rule);

  void OnArrival(const AdmissionRequest& request) override;
  void Decide(int64_t round, AdmissionRound& out) override;
  void OnEnd(RequestId id) override;
  int64_t waiting() const override { return static_cast<int64_t>(waiting_.size()); }

 private:
  struct Entry {
    // As it arrived.
    AdmissionRequest request;
    int64_t arrival = 0;
    // Tokens made before it was preempted, and what it is believed to make from there on.
    int64_t made = 0, left = 0;
    // While it runs.
    int64_t began = 0;
    KvLine line;
  };
  // Length (0 in the order of arrival), arrival, id.
  using Place = std::tuple<int64_t, int64_t, RequestId>;

  Place PlaceOf(const Entry& entry) const;
  // Requests that should have ended and have not.
  void Extend(int64_t round);
  int64_t Left(const AdmissionRequest& request, int64_t made) const;
  // Whether one more that ends at `end` would be too many like it.
  bool EndsInAWave(const Entry& entry, int64_t end) const;
  void PreemptOverflow(int64_t round, AdmissionRound& out);

  const AdmissionOptions options_;
  const MemoryRuleOptions rule_;
  int64_t arrivals_ = 0;
  int64_t round_ = 0;
  // Token-rounds that requests took, and were believed to take: means over those that ended lately.
  double taken_ = 1, believed_ = 1;
  absl::flat_hash_map<RequestId, Entry> requests_;
  std::set<Place> waiting_;
  // By the time they should end, and by when they began.
  std::set<std::pair<int64_t, RequestId>> ends_, began_;
  KvProfile profile_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_MEMORY_RULE_H_
