// Synthetic workloads of theory: lengths from named distributions, no arrivals.
//
// Purpose: workloads whose optimum or growth is known on paper, for the simulator and for tests against
// theory. Pure and deterministic for a seed; fewer requests are the beginning of more. Lengths in tokens.
// Threads: any, no state.
#ifndef BFIO_COMMON_WORKLOAD_SYNTHETIC_H_
#define BFIO_COMMON_WORKLOAD_SYNTHETIC_H_

#include <cstdint>

#include "common/workload/trace.h"

namespace bfio {

// Prompts uniform on the whole numbers lo .. hi (both included), every output `output_tokens`.
// REQUIRES: 1 <= lo <= hi.
// REQUIRES: output_tokens >= 1.
// REQUIRES: requests >= 0.
Trace UniformPromptsConstantOutputs(int64_t lo, int64_t hi, int64_t output_tokens, int64_t requests,
                                    uint64_t seed);

// Prompts uniform on lo .. hi, outputs geometric: 1, 2, ... with P(o > k) = (1 - p)^k and mean 1 / p.
// REQUIRES: 1 <= lo <= hi.
// REQUIRES: 0 < p <= 1.
// REQUIRES: requests >= 0.
Trace UniformPromptsGeometricOutputs(int64_t lo, int64_t hi, double p, int64_t requests, uint64_t seed);

// The synthetic generator of the BF-IO paper's authors (Echoscd/Load-Balancing-Release): (prompt, output)
// bivariate normal, means 3200 and 1200, standard deviations 2600 and 700, correlation -0.1, pairs with
// either below 1 drawn again, rounded. What is left has other moments than what was cut: means 3,726 and
// 1,255, correlation -0.075. REQUIRES: requests >= 0.
Trace TruncatedNormalLengths(int64_t requests, uint64_t seed);

}  // namespace bfio

#endif  // BFIO_COMMON_WORKLOAD_SYNTHETIC_H_
