// Rules that check memory until the end of all running requests: MC-SF, MC-Benchmark, and a paced variant.
//
// Purpose: Algorithms 1 and 2 of the paper, equation (1), and two variants; the test of memory is the
// router's (router/core/admission/mc_sf.h). With exact lengths memory never exceeds M. The paper's
// optimality claims fail (research/tests/unit/admission has the counterexamples): similar requests fill
// memory in waves, which the pace (end_pace.h) prevents. Where requests end before their predicted length,
// the pace is scaled up by the ratio of predicted to actual token-rounds of recent requests.
//
// No later request that has waited less starts before one that has waited `most` rounds. That one starts when
// it fits, at the latest when all running requests have ended.
//
// Predicted lengths: every request counts as `margin` tokens longer. A request that exceeds this gets the new
// prediction of AdmissionOptions::lengths, or is counted a quarter longer, repeatedly, up to its limit. When
// memory is exceeded nevertheless, the requests that started last are preempted and resume with their
// generated tokens. The oldest is never preempted while it fits alone, so every request ends. A request that
// ends early releases what was reserved for it.
#pragma once

#include <limits>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "research/admission/admission_rule.h"
#include "research/admission/end_pace.h"
#include "router/core/admission/mc_sf.h"

namespace bfio::sim {

using core::KvCourse;
using core::McSf;

struct MemoryRuleOptions {
  enum class Order { kShortestFirst, kArrival };
  Order order = Order::kShortestFirst;
  bool paced = false;
  // Tokens that a request may generate beyond its predicted length.
  int64_t margin = 0;
  // Rounds after which no request passes it; by default there is no bound.
  int64_t most = std::numeric_limits<int64_t>::max();
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
    // The first round in which it could have begun.
    int64_t came = 0;
    // Tokens generated before it was preempted, and tokens predicted from there on.
    int64_t made = 0, left = 0;
    // Set while it runs.
    int64_t began = 0;

    int64_t prompt() const { return request.prompt + made; }
  };
  // Order of waiting requests: length (0 for rules in order of arrival), arrival, id.
  using Place = std::tuple<int64_t, int64_t, RequestId>;

  Place PlaceOf(const Entry& entry) const;
  void Wait(const Entry& entry);
  // Starts those that have waited `most` rounds, in order of arrival; false: one of them does not fit.
  bool BeginOverdue(int64_t round, AdmissionRound& out);
  bool Fits(const Entry& entry, const KvCourse& course) const;
  KvCourse CourseOf(const Entry& entry, int64_t round) const;
  void Begin(Entry& entry, const KvCourse& course, int64_t round, AdmissionRound& out);
  // Extends the courses of requests that should have ended and have not.
  void Extend(int64_t round);
  int64_t Left(const AdmissionRequest& request, int64_t made) const;
  void SetEnd(const Entry& entry, int64_t last);
  void PreemptOverflow(int64_t round, AdmissionRound& out);

  const AdmissionOptions options_;
  const MemoryRuleOptions rule_;
  int64_t arrivals_ = 0;
  int64_t round_ = 0;
  // Actual and predicted token-rounds: means over requests that ended recently.
  double taken_ = 1, believed_ = 1;
  absl::flat_hash_map<RequestId, Entry> requests_;
  std::set<Place> waiting_;
  // The same requests by arrival.
  std::set<std::pair<int64_t, RequestId>> came_;
  // Those that arrived since the previous round.
  std::vector<RequestId> newcomers_;
  // Running requests by their start time.
  std::set<std::pair<int64_t, RequestId>> began_;
  McSf memory_;
  EndPace pace_;
};

}  // namespace bfio::sim
