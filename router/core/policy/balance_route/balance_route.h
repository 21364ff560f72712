// br0 and br_h: the margin score in two stages; our reading of BalanceRoute.
//
// Source: "Tackling the Data-Parallel Load Balancing Bottleneck in LLM Serving" (BalanceRoute), arXiv
// 2605.06113, of which only the abstract was available, without the formula. From the abstract: the score is
// piecewise linear; filling a margin and overflowing it count differently; the score is discounted over a
// short horizon; there are two stages. The formula is derived from the one-step imbalance; the stages and
// br_h's constants (beta = 43, d = 0.86, 7 slots, 1,024 candidates) are those of the same group's public
// simulator (Echoscd/Load-Balancing-Release, strategy_balance_future). Do not quote these constants as the
// paper's.
//
//   1. While more than 7 slots are free: the worker with most free slots (ties: least loaded) takes the
//      request with the largest score among the 1,024 oldest.
//   2. Then the worker with the least load at the end of the horizon takes as many of the candidates as it
//      has slots (or fewer when that scores more): the subset whose sum comes closest to its least margin.
//
// br0 uses the present step only, with beta = G: the exact change of G max L - sum L. br_h uses the
// snapshot's outlook as far as it reaches. In that simulator a load only shrinks by predicted completions; in
// the outlook it also grows. A lower class of priority follows when the higher one is placed.
//
// Purpose: a baseline that chooses out of the whole pool by a formula instead of a search. Threads: as
// Policy.
#ifndef BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_BALANCE_ROUTE_H_
#define BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_BALANCE_ROUTE_H_

#include <cstdint>
#include <vector>

#include "router/core/model/free_capacity.h"
#include "router/core/policy/balance_route/margin_score.h"
#include "router/core/policy/balance_route/subset_sum.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

class BalanceRoutePolicy final : public Policy {
 public:
  // br0 without a horizon, br_h with one. REQUIRES: horizon >= 0; `name` outlives the policy.
  BalanceRoutePolicy(absl::string_view name, int32_t horizon, double overflow_weight)
      : name_(name), horizon_(horizon), overflow_weight_(overflow_weight) {}
  absl::string_view name() const override { return name_; }
  int32_t horizon() const override { return horizon_; }
  void Decide(const Snapshot& snapshot, Decision& decision) override;

 private:
  static constexpr double kDiscount = 0.86;

  void Start(const Snapshot& snapshot);
  absl::Span<double> Loads(WorkerIndex worker);
  // Free slots of the workers that at least one waiting request still fits.
  int64_t OpenSlots() const;
  WorkerIndex MostFree();
  WorkerIndex LeastLoadedAtTheEnd();
  // Finds the oldest requests of one class that fit the worker; closes the worker when there are none.
  bool FindCandidates(const Snapshot& snapshot, WorkerIndex worker);
  int32_t BestCandidate() const;
  void BestSubset(WorkerIndex worker, std::vector<int32_t>& best);
  void Give(const Snapshot& snapshot, int32_t candidate, WorkerIndex worker, std::vector<Assignment>& plan);

  absl::string_view name_;
  int32_t horizon_;
  // beta; 0 means G.
  double overflow_weight_;
  FreeCapacity free_;
  MarginScore score_{1, kDiscount};
  SubsetSum subset_sum_;
  // [g * (H + 1) + h], and the largest of any g by h.
  std::vector<double> loads_;
  std::vector<double> envelope_;
  size_t steps_ = 1;
  std::vector<char> closed_, placed_;
  // Waiting indices and sizes of the candidates; where the search for them begins.
  std::vector<int32_t> candidates_, subset_;
  std::vector<int64_t> sizes_;
  int32_t first_left_ = 0;
};

// br_h's beta.
inline constexpr double kBrHorizonOverflowWeight = 43;
// With this horizon the smallest weight, 0.86^500, is below 1e-32.
inline constexpr int32_t kBrLongestHorizon = 500;

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_BALANCE_ROUTE_H_
