// The fluid benchmark of "Fluid-Based Online Scheduling under Memory Constraints", and thresholds from it.
//
// Purpose: what a worker can do in the limit of many small requests, and from how many waiting requests on
// WAIT and Nested WAIT should begin a batch. Requests come in types: prompts of l tokens, l' tokens to make,
// Poisson arrivals. A request passes stages 0 (its prompt is read) to l'; at stage k it holds l + k tokens.
// An iteration takes d0 + d1 times the tokens held by what is in the batch, and each of these goes one stage
// on. Sizes in tokens, times in seconds, rates per second. Pure functions; any thread. Equations by the
// paper's numbers.
#ifndef BFIO_ROUTER_CORE_ADMISSION_FLUID_H_
#define BFIO_ROUTER_CORE_ADMISSION_FLUID_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace bfio::core {

struct RequestType {
  double rate = 0;     // lambda_j
  int64_t prompt = 0;  // l_j
  int64_t output = 0;  // l'_j, at least 1
};

struct IterationTime {
  double d0 = 0, d1 = 0;

  double operator()(double tokens) const { return d0 + d1 * tokens; }
};

// Tokens that a request of this type holds, summed over its stages: (l' + 1)(l + l' / 2).
double StageTokens(const RequestType& type);

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

// Nested WAIT (lengths unknown): segment i holds the stages from where type i - 1 ends to where type i does;
// a request shows its type by leaving. Types with one prompt length, by output ascending.
struct Segments {
  int64_t prompt = 0;
  // Last stage of each segment; the first begins at stage 0.
  std::vector<int64_t> last_stage;
  // Share of the requests of segment i - 1 that reach segment i; 1 for the first.
  std::vector<double> survive;
  double rate = 0;

  int64_t first_stage(size_t i) const { return i == 0 ? 0 : last_stage[i - 1] + 1; }
};
// REQUIRES: types sorted by output, outputs distinct. The prompt is the rates' mean, rounded up.
Segments SegmentsOf(absl::Span<const RequestType> types);
// B.2: at most `count` segments of about equal width instead of one for each length.
Segments MergedSegments(absl::Span<const RequestType> types, int64_t count);

// Tokens that a request holds, summed over the stages of segment i.
double SegmentTokens(const Segments& segments, size_t i);

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

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_ADMISSION_FLUID_H_
