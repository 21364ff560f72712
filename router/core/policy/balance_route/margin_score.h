// The margin score: the value of adding S tokens to a worker.
//
// Purpose: the criterion by which br0 and br_h rank requests.
// Source: F(S, m) = alpha S - beta max(0, S - m), summed over the steps ahead with weights d^h, where the
// margin m_h is how far the worker lies below the most loaded one at step + h. With alpha = 1 and beta = G it
// is, for one step, exactly the idle work that the tokens remove (balance_route.h names the source).
// Piecewise linear and concave in S. Added tokens are assumed to stay and not to grow. Cost: O(H log H) for
// Reset, O(log H) per score. Threads: one.
#ifndef BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_MARGIN_SCORE_H_
#define BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_MARGIN_SCORE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace bfio::core {

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

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_POLICY_BALANCE_ROUTE_MARGIN_SCORE_H_
