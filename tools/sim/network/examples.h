// The example networks of papers and experiments.
//
// Purpose: one place for their constants. Pure. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_NETWORK_EXAMPLES_H_
#define BFIO_TOOLS_SIM_NETWORK_EXAMPLES_H_

#include <cstdint>

#include "tools/sim/network/network.h"

namespace bfio::sim {

// Seconds of a batch of this many tokens: Llama-3-70B on two A100, 45.5 ms, and 0.30 ms for each token beyond
// 64.
double BatchSeconds(int64_t tokens);

// Rybko and Stolyar's network in the paper's parameters: two engines, b = 768, slots. Type A has a short call
// at engine 0, then a long one at engine 1; type B the reverse. Short: 32 prefill and 32 decode tokens, long:
// 512 and 32, each Poisson. `load` is the load of each engine. Its priorities are unstable above
// `RybkoStolyarThreshold`.
Network RybkoStolyar(double load);
// The load at which the two long classes, which the exit-first order never serves at the same time, together
// fill one engine: 2 rate (512 + 32) / 768 = 1.
double RybkoStolyarThreshold();

// Section 4.3: engine 0, then 1 and 2 in parallel, then 3 when both have ended; b = 512, seconds. `load` is
// that of the busiest engine (1).
Network ForkJoin(double load);

// Two types that return to engines they have used: planner 0, coder 1, planner again, and a debate of three
// rounds between them; b = 512, seconds. `load` is that of the busier engine.
Network Cycles(double load);

// Agents of very different lengths on two engines, each of which can serve any call: most have one call, some
// a sequence of three, the fewest of twelve. Each call's prompt includes the answers of the calls before it;
// b = 512, slots.
Network LongAndShort(double load);

// Proposition 1: requests of one call, 100 prefill and 100 decode tokens, to any of `engines`; b = 512.
Network ParallelEngines(int32_t engines, double load);

// Section 4.2: two types of requests on one engine, 50 + 350 and 600 + 60 tokens, at the same rate; b = 512.
Network TwoTypes(double load);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_NETWORK_EXAMPLES_H_
