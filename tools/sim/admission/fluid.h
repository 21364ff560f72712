// The fluid benchmark of "Fluid-Based Online Scheduling under Memory Constraints", and thresholds from it.
//
// Purpose: the throughput of a worker in the limit of many small requests, and the numbers of waiting
// requests from which WAIT and Nested WAIT should start a batch. Requests have types (request_stages.h) and
// Poisson arrivals. An iteration takes d0 + d1 times the tokens held by its batch, and advances each of the
// batch's requests by one stage. Sizes in tokens, times in seconds, rates per second. Pure functions; any
// thread. Equations have the paper's numbers.
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
  // M*: tokens of a batch in equilibrium, and number of requests of each type in it, over all stages.
  double memory = 0;
  std::vector<double> requests;
  // Tokens per second, where a prompt counts as one: the long-run upper bound of every policy.
  double throughput = 0;
};
// FAILED_PRECONDITION where the load is too high for any memory: d1 * sum of rate * StageTokens is 1 or more.
absl::StatusOr<Fluid> FluidEquilibrium(absl::Span<const RequestType> types, const IterationTime& time);

// Tokens per second of this mix of types that batches of `memory` tokens (C) sustain: the fluid's throughput,
// or less where its batch does not fit or none is large enough.
double ThroughputWithin(absl::Span<const RequestType> types, const IterationTime& time, double memory);

// WAIT (lengths known): a type is ready when as many of its requests as its threshold wait at stage 0; then
// as many are taken at each stage. WaitIteration is DT(n), the time of the iteration with every type ready.
double WaitIteration(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds,
                     const IterationTime& time);
// Equation (7), DT(n) < n_j / lambda_j for all j.
bool WaitIsStable(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds,
                  const IterationTime& time);
// Thresholds in proportion to the rates, the smallest that are stable with DT(n) at most `load` times n_j /
// lambda_j. Errors as FluidEquilibrium's. REQUIRES: 0 < load <= 1.
absl::StatusOr<std::vector<int64_t>> WaitThresholds(absl::Span<const RequestType> types,
                                                    const IterationTime& time, double load = 0.98);
// Tokens of the largest batch, which is also the most that WAIT ever holds: a stage passes on as many
// requests as it gets.
double WaitPeakTokens(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds);
// Thresholds in proportion to the rates, the largest with a batch of at most `memory` tokens; 1 at least.
std::vector<int64_t> WaitThresholdsWithin(absl::Span<const RequestType> types, double memory);

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
// The same thresholds without rounding: for loads of less than a request per iteration, which whole
// thresholds cannot follow. Empty where the load is too high for any memory.
std::vector<double> NestedFluidThresholds(const Segments& segments, const IterationTime& time, double margin,
                                          double load);
// Tokens of the largest batch.
double NestedPeakTokens(const Segments& segments, absl::Span<const int64_t> thresholds);
// n_i = margin p_i n_(i-1), the largest with a batch of at most `memory` tokens; 1 at least.
std::vector<int64_t> NestedThresholdsWithin(const Segments& segments, double margin, double memory);

// Equation (13): the positive root of n_k theta = n_(k-1) ln(1 - p + p e^theta). REQUIRES: n_k > p n_(k-1), 0
// < p < 1, n_k < n_(k-1).
double SegmentDecay(double n_k, double n_before, double p);
// Equation (12): tokens that are not exceeded in `iterations` iterations with probability 1 - delta are
// peak + queues + excess.
struct NestedMemory {
  // The largest batch: exactly, n_i times the tokens of segment i's stages; and as the paper prints it, with
  // l + (l'_1 + .. + l'_i) / 2 tokens per stage in Theorem 5.1's proof and l + i DL / 2 in B.2. The first is
  // too large from the third segment on (the mean stage is (l'_(i-1) + l'_i) / 2), the second too small from
  // the second on ((i - 1/2) DL).
  double peak = 0, printed_peak = 0, printed_equal_peak = 0;
  // Requests that wait between segments: their mean's bound, and what is added to hold with probability 1 -
  // delta.
  double queues = 0, excess = 0;

  double Bound() const { return peak + queues + excess; }
};
NestedMemory NestedMemoryBound(const Segments& segments, absl::Span<const double> thresholds,
                               double iterations, double delta);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_FLUID_H_
