// Rules that check memory until the end of all running requests: MC-SF, MC-Benchmark, and a paced variant.
//
// Purpose: Algorithms 1 and 2 of the paper, equation (1), and two variants. With exact lengths memory never
// exceeds M. The paper's optimality claims fail (tests/unit/router/core/admission has the counterexamples):
// shortest-first fills memory in waves, because similar requests that start together end together, and until
// then the memory reserved for their future tokens is unused. The pace prevents this. M tokens support at
// most r = M / (s (o + 1) + o (o + 1) / 2) requests of s prompt and o output tokens per round in the long
// run. So of similar requests (total and output within a fifth) at most r n and a part of one may end in any
// n rounds. A request beyond that waits, and longer ones may overtake it; requests of mixed lengths are
// rarely delayed. The pace applies only while more than half the memory is reserved. Where requests end
// before their predicted length, r is scaled up by the ratio of predicted to actual token-rounds of recent
// requests.
//
// Predicted lengths: every request counts as `margin` tokens longer. A request that exceeds this gets the new
// prediction of AdmissionOptions::lengths, or is counted a quarter longer, repeatedly, up to its limit. When
// memory is exceeded nevertheless, the requests that started last are preempted and resume with their
// generated tokens. The oldest is never preempted while it fits alone, so every request ends. A request that
// ends early releases what was reserved for it.
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
  // Tokens that a request may generate beyond its predicted length.
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
    // The request as it arrived.
    AdmissionRequest request;
    int64_t arrival = 0;
    // Tokens generated before it was preempted, and tokens predicted from there on.
    int64_t made = 0, left = 0;
    // Set while it runs.
    int64_t began = 0;
    KvLine line;
  };
  // Order of waiting requests: length (0 in the order of arrival), arrival, id.
  using Place = std::tuple<int64_t, int64_t, RequestId>;

  Place PlaceOf(const Entry& entry) const;
  // Extends the lines of requests that should have ended and have not.
  void Extend(int64_t round);
  int64_t Left(const AdmissionRequest& request, int64_t made) const;
  // Whether too many similar requests would end together if one more ended at `end`.
  bool EndsInAWave(const Entry& entry, int64_t end) const;
  void PreemptOverflow(int64_t round, AdmissionRound& out);

  const AdmissionOptions options_;
  const MemoryRuleOptions rule_;
  int64_t arrivals_ = 0;
  int64_t round_ = 0;
  // Actual and predicted token-rounds: means over requests that ended recently.
  double taken_ = 1, believed_ = 1;
  absl::flat_hash_map<RequestId, Entry> requests_;
  std::set<Place> waiting_;
  // By the time at which they are predicted to end, and by the time at which they started.
  std::set<std::pair<int64_t, RequestId>> ends_, began_;
  KvProfile profile_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_MEMORY_RULE_H_
