#include "router/core/admission/wait_tuner.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {
namespace {

// Below what thresholds were solved for; standard errors above an estimate.
constexpr double kBelow = 0.8, kErrors = 2;
// Times a time constant that rates are looked at.
constexpr double kLooks = 20;
// Of the heaviest load, where what arrives is more.
constexpr double kHeaviest = 0.97;

}  // namespace

WaitTuner::WaitTuner(absl::Span<const RequestType> types, const IterationTime& time,
                     const WaitTunerOptions& options)
    : options_(options),
      time_(time),
      types_(types.begin(), types.end()),
      weight_(types.size()),
      last_(types.size()),
      thresholds_(types.size(), 1) {
  for (RequestType& type : types_) type.rate = 0;
}

void WaitTuner::OnArrival(size_t type, double now) {
  weight_[type] =
      weight_[type] * std::exp((last_[type] - now) / options_.time_constant) + 1 / options_.time_constant;
  last_[type] = now;
}

double WaitTuner::Rate(size_t type, double now) const {
  const double seen = -std::expm1(-now / options_.time_constant);
  if (seen <= 0) return 0;
  return weight_[type] * std::exp((last_[type] - now) / options_.time_constant) / seen;
}

double WaitTuner::Bound(size_t type, double now, double errors) const {
  const double rate = Rate(type, now);
  return rate + errors * std::sqrt(rate / (2 * options_.time_constant));
}

bool WaitTuner::Drifted(double now) const {
  for (size_t j = 0; j < types_.size(); ++j) {
    if (Bound(j, now, kErrors / 2) > types_[j].rate || Bound(j, now, kErrors) < kBelow * types_[j].rate)
      return true;
  }
  return false;
}

absl::Span<const int64_t> WaitTuner::Thresholds(double now) {
  if (now < looked_ + options_.time_constant / kLooks) return thresholds_;
  looked_ = now;
  if (!Drifted(now)) return thresholds_;
  double tokens = 0;
  for (size_t j = 0; j < types_.size(); ++j) {
    types_[j].rate = Bound(j, now, kErrors);
    tokens += types_[j].rate * StageTokens(types_[j]);
  }
  std::vector<RequestType> carried = types_;
  if (const double share = time_.d1 * tokens / (options_.load * kHeaviest); share > 1) {
    for (RequestType& type : carried) type.rate /= share;
  }
  if (auto thresholds = WaitThresholds(carried, time_, options_.load); thresholds.ok()) {
    thresholds_ = *std::move(thresholds);
    ++solved_;
  }
  return thresholds_;
}

}  // namespace bfio::core
