// Changes that a simulation makes to a trace before it runs, and the demand that a trace places on a group.
// One definition of seed and of load for traces and profiles. Pure; deterministic for a seed. Lengths in
// tokens, times in seconds, rates in requests per second.
#pragma once

#include <cstdint>

#include "common/cost/step_time.h"
#include "common/workload/trace.h"
#include "tools/sim/rank/serve_group.h"

namespace bfio::sim {

// The source of the simulated requests: a trace that is repeated without end, revealed in its order. Arrival
// times are those of the trace divided by the load factor; every repetition is shifted by the trace's span.
// Ids count from 1. Borrows the trace. Threads: one.
class RequestSource {
 public:
  // `limit`: number of requests; 0: without end. REQUIRES: the trace is not empty and load > 0.
  RequestSource(const Trace& trace, double load, int64_t limit);

  // All `limit` requests have been revealed.
  bool Exhausted() const { return limit_ > 0 && revealed_ >= limit_; }

  // The next request, whenever it arrives. REQUIRES: not exhausted.
  ServeRequest Next();

  // Arrival time of the next request.
  double NextArrival() const;

 private:
  const Trace& trace_;
  double load_;
  int64_t limit_;
  // Seconds from the first request of one repetition to the first of the next, before the load factor.
  double span_s_;
  int64_t revealed_ = 0;
};

// The trace rotated to a start that the seed draws, with arrivals shifted to begin at 0; at the wrap the gap
// is the mean gap. Seed 1 is the trace unchanged.
Trace Rotated(const Trace& trace, uint64_t seed);

// The same lengths in bursts: requests that come at once, `burst` on average (geometric), with exponential
// gaps between bursts; one request per second on average. 1: Poisson arrivals.
Trace WithArrivals(const Trace& trace, uint64_t seed, double burst = 1);

// Seconds from the first request of one repetition of the trace to the first of the next: the gap is the mean
// gap; 1 for a trace whose requests all come at once. REQUIRES: not empty.
double RoundSeconds(const Trace& trace);

// Mean arrivals per second over the trace, including the gap to its repetition.
double ArrivalRate(const Trace& trace);

// E[o]: the mean number of steps that a request stays.
double MeanOutputTokens(const Trace& trace);

// Slots that a group with every slot taken frees per step: G B / E[o].
double MeanFreeSlots(const Trace& trace, int32_t workers, int32_t batch);

// Requests per second that a group serves with every slot taken and perfect balance: G B requests stay for
// E[o] steps of C + t_l B m seconds, where m = E[o (s + (o - 1) / 2)] / E[o] is the mean load of a taken
// slot. No policy can serve more without choosing its requests.
double FullSlotRequestRate(const Trace& trace, int32_t workers, int32_t batch, const StepCost& cost);

}  // namespace bfio::sim
