// Synthetic workloads from theory: lengths from named distributions, no arrivals.
//
// Purpose: workloads with a known optimum or growth, for the simulator and for tests against theory. Pure and
// deterministic for a seed; a shorter trace is a prefix of a longer one. Lengths in tokens. Threads: any, no
// state.
#ifndef BFIO_COMMON_WORKLOAD_SYNTHETIC_H_
#define BFIO_COMMON_WORKLOAD_SYNTHETIC_H_

#include <cstdint>

#include "common/workload/trace.h"

namespace bfio {

// Prompts uniform on the integers lo .. hi (inclusive), every output `output_tokens`. REQUIRES: 1 <= lo <=
// hi, output_tokens >= 1, requests >= 0.
Trace UniformPromptsConstantOutputs(int64_t lo, int64_t hi, int64_t output_tokens, int64_t requests,
                                    uint64_t seed);

// Prompts uniform on lo .. hi, outputs geometric: 1, 2, ... with P(o > k) = (1 - p)^k and mean 1 / p.
// REQUIRES: 1 <= lo <= hi, 0 < p <= 1, requests >= 0.
Trace UniformPromptsGeometricOutputs(int64_t lo, int64_t hi, double p, int64_t requests, uint64_t seed);

// The synthetic generator of the BF-IO paper's authors (Echoscd/Load-Balancing-Release): (prompt, output)
// bivariate normal, means 3200 and 1200, standard deviations 2600 and 700, correlation -0.1, rounded; pairs
// with either below 1 are drawn again. Due to this truncation the resulting means are 3,726 and 1,255, the
// correlation -0.075. REQUIRES: requests >= 0.
Trace TruncatedNormalLengths(int64_t requests, uint64_t seed);

}  // namespace bfio

#endif  // BFIO_COMMON_WORKLOAD_SYNTHETIC_H_
