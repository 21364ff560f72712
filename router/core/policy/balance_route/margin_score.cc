#include "router/core/policy/balance_route/margin_score.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace bfio::core {

void MarginScore::Reset(absl::Span<const double> loads, absl::Span<const double> envelope) {
  margins_.clear();
  double weight = 1;
  for (size_t h = 0; h < loads.size(); ++h, weight *= discount_) {
    margins_.emplace_back(std::max(0.0, envelope[h] - loads[h]), weight);
  }
  std::sort(margins_.begin(), margins_.end());
  weight_below_.assign(1, 0);
  weighted_margin_below_.assign(1, 0);
  for (const auto& [margin, step_weight] : margins_) {
    weight_below_.push_back(weight_below_.back() + step_weight);
    weighted_margin_below_.push_back(weighted_margin_below_.back() + step_weight * margin);
  }
  safe_ = static_cast<int64_t>(std::floor(margins_.front().first));
}

double MarginScore::operator()(int64_t tokens) const {
  const double s = static_cast<double>(tokens);
  const auto end = std::lower_bound(margins_.begin(), margins_.end(),
                                    std::make_pair(s, -std::numeric_limits<double>::infinity()));
  const size_t below = static_cast<size_t>(end - margins_.begin());
  return s * weight_below_.back() -
         overflow_weight_ * (s * weight_below_[below] - weighted_margin_below_[below]);
}

}  // namespace bfio::core
