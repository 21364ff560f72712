// The loads that the WAIT experiments share.
//
// Purpose: those of "Fluid-Based Online Scheduling under Memory Constraints", Section 5, or of its code where
// the paper is silent (prompts of 10 and 60 tokens), and the iteration time. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_WAIT_LOADS_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_WAIT_LOADS_H_

#include <cstdint>
#include <vector>

#include "router/core/admission/fluid.h"

namespace bfio::sim::wait {

// Llama-2-7B in fp16 on an A100 with 80 GB, by its bandwidth; the paper does not give its own.
inline constexpr core::IterationTime kTime = {6.6e-3, 2.57e-7};
inline constexpr int64_t kMemory = 120'000;

std::vector<core::RequestType> TwoTypes();
std::vector<core::RequestType> FourTypes();
// LMSYS in ten bins of 50 tokens.
std::vector<core::RequestType> Lmsys();

// d1 times the tokens of all stages that arrive in a second: at 1 no batch size keeps up.
double LoadOf(const std::vector<core::RequestType>& types);
// With rates for that load.
std::vector<core::RequestType> AtLoad(std::vector<core::RequestType> types, double load);

}  // namespace bfio::sim::wait

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_WAIT_LOADS_H_
