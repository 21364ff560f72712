// Lengths of a workload's requests, and how many of them per second a group of engines can serve. One
// definition of load for every rule: a share of the capacity of a perfectly balanced group, so that no rule's
// own capacity sets the scale. Pure; any thread. Tokens, seconds, requests per second.
#pragma once

#include <cstdint>
#include <optional>

#include "common/cost/batch_time.h"
#include "common/workload/trace.h"

namespace bfio::sim {

// Means over a workload's requests, with prompt length s and output length o.
struct LengthMoments {
  double prompt = 0;
  double output = 0;
  double prompt_squared = 0;
  // E[(o - 1) s + (o - 1)^2 / 2]: cached tokens that all decodes of a request read together.
  double decode_context = 0;
};
LengthMoments MomentsOf(const Trace& trace);
// The same if another rank computes all of the prompts but their last tokens.
LengthMoments WithoutPrompts(LengthMoments moments);
// Mean time in which a rank computes a prompt alone, with up to `budget` tokens per step.
double PromptSeconds(const Trace& trace, const BatchCost& cost, int64_t budget);

// Steps until the decodes of an initially empty group attend to `share` of the tokens of its steady state, if
// the same number of requests begins in every step. A few requests with long outputs account for much of
// these tokens, so this can take many times the mean lifetime of a request.
int64_t StepsUntilFilled(const Trace& trace, double share);

struct ServeCapacity {
  // lambda*, see CapacityOf.
  double requests_per_s = 0;
  // At this rate: number of requests that decode on each rank, and the step time.
  int64_t decodes = 0;
  double step_s = 0;
};

// lambda* = max over N <= slots of G mu / T(N). N decodes per rank end at mu = N / (E[o] - 1) requests per
// step, and prompts are computed evenly at the same rate: T = C + A max(0, N + mu E[s] - B0) + K1 mu E[s^2] /
// 2 + K2 mu decode_context. A step has at most 2,048 rows, unless N = 1 alone exceeds them. REQUIRES:
// moments.output > 1.
ServeCapacity CapacityOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks, int64_t slots);

// Mean latencies in a perfectly balanced group, in seconds.
struct ServeFloor {
  double ttft_s = 0, tpot_s = 0, e2e_s = 0;
};

// Assumes that no request waits, no row is wasted, and all ranks take equally long. N decodes per rank end at
// N / (E[o] - 1) = arrivals_per_s / ranks per step; T is the step time as in CapacityOf, but N need not be an
// integer. With noise (`jitter` as in ServeGroup::Options) a step takes as long as the slowest rank's random
// factor makes it, which no plan can predict. A first token takes one step, plus half a step because requests
// arrive at any time; each further token takes one step. Empty when such a group cannot serve this rate with
// up to `slots` decodes per rank. REQUIRES: moments.output > 1.
std::optional<ServeFloor> FloorOf(const LengthMoments& moments, const BatchCost& cost, int32_t ranks,
                                  int64_t slots, double arrivals_per_s, double jitter);

// Expectation of the largest of `ranks` independent lognormal factors of mean 1 whose logarithms have the
// standard deviation `jitter`. Computed by numerical integration, with an error below 1e-6.
double MeanOfLargestFactor(int32_t ranks, double jitter);

}  // namespace bfio::sim
