#include "tools/sim/experiment/arrivals.h"

#include "tools/sim/run/workload.h"

namespace bfio::sim {

TraceOfSeed ArrivingBySeed(const Workload& workload) {
  if (workload.trace->has_arrivals) return RotatedBySeed(workload);
  return OncePerSeed(
      [trace = workload.trace](uint64_t seed) { return WithPoissonArrivals(Rotated(*trace, seed), seed); });
}

std::string ArrivalsName(const Workload& workload) {
  return workload.trace->has_arrivals ? "its own times, stretched" : "Poisson";
}

double LoadForShare(const Trace& trace, const SimOptions& options, double share) {
  // Poisson arrivals come one a second.
  const double own = trace.has_arrivals ? ArrivalRate(trace) : 1;
  return share * FullSlotRequestRate(trace, options.workers, options.batch, options.cost) / own;
}

}  // namespace bfio::sim
