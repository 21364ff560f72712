// WAIT's thresholds from observed arrivals: rates are estimated online, thresholds solved again as they
// drift.
//
// Purpose: B.1 of "Fluid-Based Online Scheduling under Memory Constraints" for rates that are neither known
// nor constant. Rates are estimated by arrival_rate.h. Thresholds are solved (fluid.h) for the estimates plus
// two standard errors. They are solved again when an estimate plus one standard error reaches the rate that
// was solved for, or when an estimate plus two is a fifth below it. A load that no batch sustains is scaled
// down to one that is sustained. Sizes in tokens, times in seconds, ascending. Threads: one.
#ifndef BFIO_TOOLS_SIM_ADMISSION_WAIT_TUNER_H_
#define BFIO_TOOLS_SIM_ADMISSION_WAIT_TUNER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/admission/arrival_rate.h"
#include "tools/sim/admission/fluid.h"

namespace bfio::sim {

struct WaitTunerOptions {
  // Time constant tau of the estimates in seconds: long enough for tens of arrivals of each type, short
  // relative to the time in which rates change.
  double time_constant = 5;
  // Upper bound of the ratio of DT(n) to n_j / rate_j.
  double load = 0.9;
};

class WaitTuner {
 public:
  // The rates in `types` are ignored. REQUIRES: at least one type; time_constant > 0; 0 < load < 1.
  WaitTuner(absl::Span<const RequestType> types, const IterationTime& time,
            const WaitTunerOptions& options = {});

  void OnArrival(size_t type, double now);
  // 1 for each type until the first arrival.
  absl::Span<const int64_t> Thresholds(double now);

  double Rate(size_t type, double now) const { return rates_[type].Rate(now); }
  int64_t solved() const { return solved_; }

 private:
  bool Drifted(double now) const;

  const WaitTunerOptions options_;
  const IterationTime time_;
  // With the rates that the thresholds are solved for.
  std::vector<RequestType> types_;
  std::vector<core::ArrivalRate> rates_;
  std::vector<int64_t> thresholds_;
  double looked_ = 0;
  int64_t solved_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_WAIT_TUNER_H_
