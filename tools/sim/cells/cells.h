// `bfio_sim admit`, `hindsight` and `engine`: one run of a simulator that does not contain the router,
// configured by flags.
//
// Purpose: research/kv.py and engines.py run these, cell by cell. Each prints one JSON object on a
// line (`hindsight` one for each instance of its file). Deterministic for --seed. Threads: call from main
// after the flags are parsed. INVALID_ARGUMENT or NOT_FOUND, naming the flag, for bad input.
#ifndef BFIO_TOOLS_SIM_CELLS_CELLS_H_
#define BFIO_TOOLS_SIM_CELLS_CELLS_H_

#include "absl/status/status.h"

namespace bfio::sim {

// One worker's KV memory under an admission rule (tools/sim/admission/one_worker.h).
absl::Status RunAdmitCommand();
// Admission rules against the best schedule of small instances (tools/sim/admission/hindsight.h).
absl::Status RunHindsightCommand();
// One engine with a batch scheduler (tools/sim/step).
absl::Status RunEngineCommand();

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_CELLS_CELLS_H_
