#include "tools/sim/admission/wait_tuner.h"

namespace bfio::sim {
namespace {

// Number of checks of the rates per time constant.
constexpr double kLooks = 20;
// If more arrives than the heaviest sustainable load, the rates are scaled down to this share of that load.
constexpr double kHeaviest = 0.97;

}  // namespace

WaitTuner::WaitTuner(absl::Span<const RequestType> types, const IterationTime& time,
                     const WaitTunerOptions& options)
    : options_(options),
      time_(time),
      types_(types.begin(), types.end()),
      rates_(types.size(), core::ArrivalRate(options.time_constant)),
      thresholds_(types.size(), 1) {
  for (RequestType& type : types_) type.rate = 0;
}

void WaitTuner::OnArrival(size_t type, double now) {
  rates_[type].OnArrival(now);
}

bool WaitTuner::Drifted(double now) const {
  for (size_t j = 0; j < types_.size(); ++j) {
    if (rates_[j].HasLeft(types_[j].rate, now)) return true;
  }
  return false;
}

absl::Span<const int64_t> WaitTuner::Thresholds(double now) {
  if (now < looked_ + options_.time_constant / kLooks) return thresholds_;
  looked_ = now;
  if (!Drifted(now)) return thresholds_;
  double tokens = 0;
  for (size_t j = 0; j < types_.size(); ++j) {
    types_[j].rate = rates_[j].Solve(now);
    tokens += types_[j].rate * core::StageTokens(types_[j]);
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

}  // namespace bfio::sim
