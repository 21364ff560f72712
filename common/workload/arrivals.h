// Arrival times of requests: from a trace, or from a renewal process. One source of intended send times for
// the traffic generator and the simulator. Pure and seeded; one thread. Times in seconds from the start,
// rates in requests per second.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/rng.h"
#include "common/workload/trace.h"

namespace bfio {

struct ArrivalOptions {
  // "trace": the trace's arrivals, repeated (a round begins one mean gap after the last arrival of the one
  // before). "poisson": independent exponential gaps. "gamma": independent gamma gaps.
  std::string kind = "poisson";
  // Mean arrivals per second before time_scale. Required and positive for poisson and gamma. For a trace, 0
  // keeps its own rate; a positive rate scales it to that mean.
  double rate = 0;
  // Shape of the gamma gaps, as in vLLM's benchmark: 1 is Poisson, below 1 burstier (squared coefficient of
  // variation of the gaps: 1 / burstiness), above 1 more even. Only for gamma.
  double burstiness = 1;
  // All arrival times are divided by this: 2 replays twice as fast.
  double time_scale = 1;
};

class ArrivalProcess {
 public:
  // `trace` is copied, and used only for kind "trace". INVALID_ARGUMENT for an unknown kind, values out of
  // range, or a trace without arrivals.
  static absl::StatusOr<ArrivalProcess> Create(const ArrivalOptions& options, const Trace& trace,
                                               uint64_t seed);

  // The next arrival time; never decreases.
  double Next();

 private:
  ArrivalProcess(double seconds_per_unit, double shape, uint64_t seed)
      : seconds_per_unit_(seconds_per_unit), shape_(shape), rng_(seed) {}

  // Times are kept in units of the trace's seconds, or of the gamma distribution's scale, and converted on
  // output.
  double seconds_per_unit_;
  double shape_;
  Rng rng_;
  double now_ = 0;
  // For kind "trace": arrivals, length of one round, and the current position.
  std::vector<double> arrivals_;
  double round_s_ = 0;
  uint64_t next_ = 0;
};

}  // namespace bfio
