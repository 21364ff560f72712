// What the BF-IO paper's theorems and the normal law say about imbalance.
//
// Purpose: the figures that experiments and tests put beside what was measured. Prompts are uniform on 1 ..
// s_max, outputs constant or geometric, every slot is taken. Pure. Threads: any, no state. Tokens.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_THEORY_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_THEORY_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace bfio::sim {

// E[f(largest of `count` standard normals)], numerically; within 1e-6 for an f that grows no faster than
// exp(x). REQUIRES: count >= 1.
double ExpectedOfLargestNormal(int64_t count, absl::FunctionRef<double(double)> f);

// m_G: 1.029 of 4, 1.424 of 8, 1.766 of 16, 2.070 of 32.
double LargestNormal(int64_t count);

// Standard deviation of a whole number uniform on 1 .. largest.
double UniformDeviation(int64_t largest);

// Mean and standard deviation of what one slot holds under a rule that looks at no lengths, tokens: a prompt,
// and what has been added since.
struct SlotLoad {
  double mean = 0, deviation = 0;
};

// Outputs geometric with parameter p, growth as `drift` has it (drift.h), prompts of this mean and deviation.
// A request that has made tokens a_1 .. a_j since it began is still there with probability (1-p)^(a_1 + ..
// + a_j), so the age of whoever holds the slot is known exactly. Mean and deviation are averages over 1,000
// steps (a drift moves all slots together, which is no imbalance). INVALID_ARGUMENT for a bad drift.
// REQUIRES: 0.001 <= p < 1.
absl::StatusOr<SlotLoad> GeometricSlotLoad(const std::string& drift, double p, double prompt_mean,
                                           double prompt_deviation, uint64_t seed);

// FCFS: G m_G sqrt(B) * deviation of a slot. An estimate: sums of B slots are taken to be normal.
double FcfsNormalEstimate(int64_t workers, int64_t batch, double slot_deviation);

// FCFS: at least c2 G sigma_s sqrt(B log G), c2 = (1 - exp(-1 / (4 sqrt(2 pi)))) / sqrt(2) (the paper's
// proof of Theorem 1).
double FcfsLowerBound(int64_t workers, int64_t batch, double prompt_deviation);

// BF-IO: at most (G - 1) s_max for constant outputs, (G - 1) s_max / p for geometric ones.
double BfIoUpperBound(int64_t workers, double largest_prompt, double p);

// sqrt(B log G), what the theorems let the improvement grow with.
double GrowthLaw(int64_t workers, int64_t batch);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_THEORY_H_
