// The flags of bfio_sim that say what a run is: one definition for every subcommand.
//
// Purpose: flags in, SimOptions and a workload out. Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_FLAGS_H_
#define BFIO_TOOLS_SIM_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workload/trace.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

// INVALID_ARGUMENT for a list that is none.
absl::StatusOr<SimOptions> OptionsFromFlags();

// The file of --trace or the profile of --profile, ready to be simulated with `seed`: read from another
// start, drawn anew, or its rows drawn with replacement (--draw). `requests` > 0: how many rows a drawn
// workload has. Dropped rows of a file are reported on standard error.
absl::StatusOr<Trace> WorkloadFromFlags(uint64_t seed, int64_t requests);

// --policy as a list; empty when the flag was not given.
std::vector<std::string> PoliciesFromFlags();

// --threads; the number of processors when that is 0.
int32_t ThreadsFromFlags();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_FLAGS_H_
