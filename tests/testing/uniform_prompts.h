// Workloads of theory: prompts uniform on lo .. hi, outputs constant or geometric, no arrivals.
//
// Purpose: runs whose growth or optimum the theorems of the BF-IO paper state. The same seed gives the same
// trace. Lengths in tokens. Threads: any, no state.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/base/rng.h"
#include "common/workload/trace.h"

namespace bfio::testing {

inline Trace UniformPromptsConstantOutputs(int64_t lo, int64_t hi, int64_t output_tokens, int64_t requests,
                                           uint64_t seed) {
  Trace trace;
  trace.requests.resize(static_cast<size_t>(requests));
  Rng prompts = Rng(seed).Fork(0);
  for (TraceRequest& request : trace.requests) {
    request.prompt_tokens = lo + static_cast<int64_t>(prompts.Below(static_cast<uint64_t>(hi - lo + 1)));
    request.output_tokens = output_tokens;
  }
  return trace;
}

// P(o > k) = (1 - p)^k for k = 0, 1, ..., by inversion; mean 1 / p. REQUIRES: 0 < p < 1.
inline Trace UniformPromptsGeometricOutputs(int64_t lo, int64_t hi, double p, int64_t requests,
                                            uint64_t seed) {
  Trace trace = UniformPromptsConstantOutputs(lo, hi, 1, requests, seed);
  Rng outputs = Rng(seed).Fork(1);
  for (TraceRequest& request : trace.requests)
    request.output_tokens += static_cast<int64_t>(std::floor(outputs.Exponential() / -std::log1p(-p)));
  return trace;
}

}  // namespace bfio::testing
