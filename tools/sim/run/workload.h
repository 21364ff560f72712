// What a simulation does to a trace before it runs, and what a trace's lengths ask of a group.
//
// Purpose: one definition of seed and of load for traces and profiles alike. Pure; deterministic for a seed.
// Lengths in tokens, times in seconds, rates in requests per second.
#ifndef BFIO_TOOLS_SIM_RUN_WORKLOAD_H_
#define BFIO_TOOLS_SIM_RUN_WORKLOAD_H_

#include <cstdint>

#include "common/cost/step_time.h"
#include "common/workload/trace.h"

namespace bfio::sim {

// The trace read round from a start that the seed draws, its arrivals moved to begin at 0; a wrapped arrival
// comes one mean gap after the last one. Seed 1 is the trace as it is.
Trace Rotated(const Trace& trace, uint64_t seed);

// The same lengths with Poisson arrivals, one a second on average.
Trace WithPoissonArrivals(const Trace& trace, uint64_t seed);

// Mean arrivals per second over the trace, the gap to its next round included.
double ArrivalRate(const Trace& trace);

// E[o]: steps a request stays.
double MeanOutputTokens(const Trace& trace);

// Slots that a group with every slot taken frees per step: G B / E[o].
double MeanFreeSlots(const Trace& trace, int32_t workers, int32_t batch);

// Requests per second that a group serves with every slot taken and perfect balance: G B requests stay for
// E[o] steps of C + t_l B m seconds, where m = E[o (s + (o - 1) / 2)] / E[o] is the mean load of a taken
// slot. No policy can serve more without choosing its requests.
double FullSlotRequestRate(const Trace& trace, int32_t workers, int32_t batch, const StepCost& cost);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_WORKLOAD_H_
