// WAIT's thresholds from observed arrivals: rates estimated online, thresholds solved again as they drift.
//
// Purpose: B.1 of "Fluid-Based Online Scheduling under Memory Constraints" where rates are neither known nor
// constant. Rates are counted (arrival_rate.h); thresholds are solved (fluid.h) for what is estimated and two
// standard errors more, and again when some estimate with one of them reaches that, or with two is a fifth
// below it. A load that no batch carries is scaled down to the heaviest that one does. Sizes in tokens, times
// in seconds, ascending. Threads: one.
#ifndef BFIO_TOOLS_SIM_ADMISSION_WAIT_TUNER_H_
#define BFIO_TOOLS_SIM_ADMISSION_WAIT_TUNER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "router/core/admission/arrival_rate.h"
#include "tools/sim/admission/fluid.h"

namespace bfio::sim {

struct WaitTunerOptions {
  // tau, s: long enough for tens of arrivals of each type, short against what rates follow.
  double time_constant = 5;
  // Of DT(n) to n_j / rate_j.
  double load = 0.9;
};

class WaitTuner {
 public:
  // The types' rates do not matter. REQUIRES: at least one type; time_constant > 0; 0 < load < 1.
  WaitTuner(absl::Span<const RequestType> types, const IterationTime& time,
            const WaitTunerOptions& options = {});

  void OnArrival(size_t type, double now);
  // 1 for each type until something has arrived.
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
