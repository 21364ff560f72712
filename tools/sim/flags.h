// The flags of bfio_sim that define a run, shared by all subcommands.
//
// Purpose: converts flags to SimOptions and a workload. Threads: call from main after the flags are parsed.
#ifndef BFIO_TOOLS_SIM_FLAGS_H_
#define BFIO_TOOLS_SIM_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/workload/trace.h"
#include "tools/sim/run/options.h"

namespace bfio::sim {

// INVALID_ARGUMENT for a flag whose list cannot be parsed.
absl::StatusOr<SimOptions> OptionsFromFlags();

// The file of --trace or the profile of --profile, varied by `seed`: rotated to another start, sampled anew,
// or with rows drawn with replacement (--draw). `requests` > 0: number of rows of a drawn workload. Dropped
// rows of a file are reported on standard error.
absl::StatusOr<Trace> WorkloadFromFlags(uint64_t seed, int64_t requests);

// --policy as a list; empty when the flag is not set.
std::vector<std::string> PoliciesFromFlags();

// --threads; the number of processors when that is 0.
int32_t ThreadsFromFlags();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_FLAGS_H_
