// br0 and br_h: BalanceRoute's BR-0 and BR-H (arXiv 2605.06113v2), the margin score F = S - G max(0, S - m)
// in two stages. BR-H sums it over H = 80 steps ahead, with a discount. The discount (0.86), 7 slots and
// 1,024 candidates are those of the same group's public simulator (Echoscd/Load-Balancing-Release,
// strategy_balance_future), not the paper's. Its predictor by a hash of the prompt is left out.
//
// 1. While more than 7 slots are free, the worker with most free slots (ties: least loaded) takes the request
//    with the largest score among the 1,024 oldest.
// 2. Then the worker with the least load at the end of the horizon takes as many of the candidates as it has
//    slots (or fewer when that scores more): the subset whose sum comes closest to its least margin.
// br0 uses the present step only: the exact change of G max L - sum L. br_h uses the snapshot's outlook as
// far as it reaches; the paper's predictor is `survival`, the default of --lookahead. A lower class of
// priority follows when the higher one is placed. Threads: as Policy.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "router/core/model/free_capacity.h"
#include "router/core/policy/policy.h"

namespace bfio::core {

// Finds exactly k of n items whose sum comes closest to a limit from below, with bitsets. The second stage of
// balance_route.h. Limits above 65,536 are approximated to one part in 32,768, so that time and memory are
// bounded: O(n k min(limit, 65,536) / 64) words. Threads: one.
class SubsetSum {
 public:
  // The indices of k items with the largest sum that is at most `limit`, ascending; if every sum of k items
  // exceeds it, the indices of the k smallest items. With a limit above 65,536 items count as multiples of a
  // unit, rounded up, so that no sum exceeds the limit. Valid until the next call. REQUIRES: 1 <= k <=
  // sizes.size() <= 65535; sizes >= 0.
  const std::vector<int32_t>& Best(absl::Span<const int64_t> sizes, int32_t k, int64_t limit);

 private:
  using Bits = std::vector<uint64_t>;
  // Marks every sum of `count` items that becomes reachable with item `index`.
  void Open(int32_t count, int32_t index, int64_t size);
  void TakeSmallest(absl::Span<const int64_t> sizes, int32_t k);

  // Sizes in units.
  std::vector<int64_t> units_;
  int64_t limit_ = 0;
  // By number of items: the reachable sums up to limit_, and for each of them the item that made it
  // reachable.
  std::vector<Bits> reachable_;
  std::vector<std::vector<uint16_t>> opened_by_;
  std::vector<int32_t> chosen_;
};

// The margin score: the value of adding S tokens to a worker. The criterion by which br0 and br_h rank
// requests. Source: F(S, m) = alpha S - beta max(0, S - m), summed over the steps ahead with weights d^h,
// where the margin m_h is how far the worker lies below the most loaded one at step + h. With alpha = 1 and
// beta = G it is, for one step, exactly the idle work that the tokens remove (balance_route.h names the
// source). Piecewise linear and concave in S. Added tokens are assumed to stay and not to grow. Cost: O(H log
// H) for Reset, O(log H) per score. Threads: one.
class MarginScore {
 public:
  // `overflow_weight` is beta, with alpha = 1. `discount` is d, in (0, 1].
  MarginScore(double overflow_weight, double discount)
      : overflow_weight_(overflow_weight), discount_(discount) {}

  void SetOverflowWeight(double weight) { overflow_weight_ = weight; }

  // `loads` and `envelope` by step ahead, h = 0 .. H; envelope is the largest load of any worker.
  void Reset(absl::Span<const double> loads, absl::Span<const double> envelope);

  double operator()(int64_t tokens) const;

  // Largest number of tokens that overflow at no step: the least margin, rounded down.
  int64_t safe() const { return safe_; }

 private:
  double overflow_weight_;
  double discount_;
  // (margin, weight), by margin; [i]: sums of weight, and of weight times margin, over the first i of them.
  std::vector<std::pair<double, double>> margins_;
  std::vector<double> weight_below_;
  std::vector<double> weighted_margin_below_;
  int64_t safe_ = 0;
};

class BalanceRoutePolicy final : public Policy {
 public:
  // br0 without a horizon, br_h with one. REQUIRES: horizon >= 0; `name` outlives the policy.
  BalanceRoutePolicy(absl::string_view name, int32_t horizon) : name_(name), horizon_(horizon) {}
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

// br_h's steps ahead where no horizon is set: the paper's.
inline constexpr int32_t kBrHorizon = 80;
// With this horizon the smallest weight, 0.86^500, is below 1e-32.
inline constexpr int32_t kBrLongestHorizon = 500;

}  // namespace bfio::core
