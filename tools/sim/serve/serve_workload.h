// Lengths of a workload's requests, and how many of them per second a group of engines can serve.
//
// Purpose: one definition of load for every rule: a share of the capacity of a perfectly balanced group, so
// that no rule's own capacity sets the scale. Pure; any thread. Tokens, seconds, requests per second.
#ifndef BFIO_TOOLS_SIM_SERVE_SERVE_WORKLOAD_H_
#define BFIO_TOOLS_SIM_SERVE_SERVE_WORKLOAD_H_

#include <cstdint>
#include <optional>

#include "common/cost/batch_time.h"
#include "common/workload/trace.h"

namespace bfio::sim {

// Means over a workload's requests of prompt s and output o.
struct LengthMoments {
  double prompt = 0;
  double output = 0;
  double prompt_squared = 0;
  // E[(o - 1) s + (o - 1)^2 / 2]: cached tokens that a request's decodes read in all.
  double decode_context = 0;
};
LengthMoments MomentsOf(const Trace& trace);

// Steps until the decodes of a group that was empty attend to `share` of the tokens to which they attend in
// the long run, where as many requests begin in every step. Few requests with long outputs hold much of
// these, so this can be many mean lives.
int64_t StepsUntilFilled(const Trace& trace, double share);

struct ServeCapacity {
  // lambda*.
  double requests_per_s = 0;
  // Requests that decode on each rank there, and the step then.
  int64_t decodes = 0;
  double step_s = 0;
};

// lambda* = max over N <= slots of G mu / T(N): N decodes per rank end at mu = N / (E[o] - 1) a step, and so
// many prompts are computed in it, evenly, T = C + A max(0, N + mu E[s] - B0) + K1 mu E[s^2] / 2 + K2 mu
// decode_context; a step holds at most 2,048 rows, unless one decode's share of prompts alone is more.
// REQUIRES: moments.output > 1.
ServeCapacity CapacityOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks, int64_t slots);

// Mean times of requests in a perfectly balanced group, seconds.
struct ServeFloor {
  double ttft_s = 0, tpot_s = 0, e2e_s = 0;
};

// No request waits, no row is wasted, and all ranks take equally long. Then N decodes per rank end at N /
// (E[o] - 1) a step, which is arrivals_per_s / ranks; T is the step as in CapacityOf, but N need not be
// whole. With noise (`jitter` as ServeGroup::Options) the step is as long as the slowest of the ranks' random
// factors makes it, since no plan can predict these. A first token takes a step and, as requests arrive at
// any time, half of the one before; each other token one. Absent where the arrivals are more than such a
// group serves, or no number of decodes up to `slots` is enough. REQUIRES: moments.output > 1.
std::optional<ServeFloor> FloorOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks,
                                  int64_t slots, double arrivals_per_s, double jitter);

// Expectation of the largest of `ranks` independent lognormal factors of mean 1, whose logarithms have the
// standard deviation `jitter`. By numerical integration, to 1e-6.
double MeanOfLargestFactor(int32_t ranks, double jitter);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_SERVE_WORKLOAD_H_
