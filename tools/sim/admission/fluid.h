// The fluid benchmark of "Fluid-Based Online Scheduling under Memory Constraints", and thresholds from it.
//
// Purpose: what a worker can do in the limit of many small requests, and from how many waiting requests on
// WAIT and Nested WAIT should begin a batch. Requests come in types (request_stages.h), by Poisson arrivals.
// An iteration takes d0 + d1 times the tokens held by what is in the batch, and each of these goes one stage
// on. Sizes in tokens, times in seconds, rates per second. Pure functions; any thread. Equations by the
// paper's numbers.
#ifndef BFIO_TOOLS_SIM_ADMISSION_FLUID_H_
#define BFIO_TOOLS_SIM_ADMISSION_FLUID_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "router/core/admission/request_stages.h"

namespace bfio::sim {

using core::RequestType;
using core::Segments;

struct IterationTime {
  double d0 = 0, d1 = 0;

  double operator()(double tokens) const { return d0 + d1 * tokens; }
};

struct Fluid {
  // M*: tokens of a batch in equilibrium, and requests of each type in it, over all stages.
  double memory = 0;
  std::vector<double> requests;
  // Tokens per second, a prompt counting as one: what no policy exceeds in the long run.
  double throughput = 0;
};
// FAILED_PRECONDITION where the load is too high for any memory: d1 * sum of rate * StageTokens is 1 or more.
absl::StatusOr<Fluid> FluidEquilibrium(absl::Span<const RequestType> types, const IterationTime& time);

// WAIT (lengths known): a type is ready when so many of it wait at stage 0; then as many are taken at each
// stage. The iteration with every type ready: DT(n).
double WaitIteration(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds,
                     const IterationTime& time);
// Equation (7), DT(n) < n_j / lambda_j for all j.
bool WaitIsStable(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds,
                  const IterationTime& time);
// Thresholds in proportion to the rates, the smallest that are stable with DT(n) at most `load` times n_j /
// lambda_j. Errors as FluidEquilibrium's. REQUIRES: 0 < load <= 1.
absl::StatusOr<std::vector<int64_t>> WaitThresholds(absl::Span<const RequestType> types,
                                                    const IterationTime& time, double load = 0.98);
// Tokens of the largest batch.
double WaitPeakTokens(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds);

// B.2: at most `count` segments of about equal width instead of one for each length.
Segments MergedSegments(absl::Span<const RequestType> types, int64_t count);

// Nested WAIT (lengths unknown): the same by segments.
double NestedIteration(const Segments& segments, absl::Span<const int64_t> thresholds,
                       const IterationTime& time);
// DT * rate < n_1 and n_i > p_i n_(i-1).
bool NestedIsStable(const Segments& segments, absl::Span<const int64_t> thresholds,
                    const IterationTime& time);
// n_i = margin p_i n_(i-1), rounded up; n_1 the smallest that is stable with DT at most `load` times n_1 /
// rate.
absl::StatusOr<std::vector<int64_t>> NestedThresholds(const Segments& segments, const IterationTime& time,
                                                      double margin = 1.1, double load = 0.95);

// Equation (13): the positive root of n_k theta = n_(k-1) ln(1 - p + p e^theta). REQUIRES: n_k > p n_(k-1), 0
// < p < 1, n_k < n_(k-1).
double SegmentDecay(double n_k, double n_before, double p);
// Tokens that are not exceeded in `iterations` iterations with probability 1 - delta: the largest batch,
// exactly summed (the paper prints a smaller one), and what waits between segments.
double NestedMemoryBound(const Segments& segments, absl::Span<const int64_t> thresholds, double iterations,
                         double delta);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_FLUID_H_
