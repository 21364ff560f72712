// The subcommands of bfio_research_sim: the admission rules of a paper on one worker, without a router.
//
// Purpose: each describes its options in a table of its own, reads them and runs (tools/sim/commands.h). It
// prints one JSON object on a line (`hindsight`: one per instance of its file). research/kv.py runs them.
#pragma once

#include "absl/status/status.h"
#include "tools/sim/commands.h"

namespace bfio::sim {

// One worker's KV memory under an admission rule (one_worker.h).
absl::Status RunAdmitCommand(const ReadOptions& read);
// Admission rules against the best schedule of small instances (hindsight.h).
absl::Status RunHindsightCommand(const ReadOptions& read);

// Help of --rule.
inline constexpr char kAdmissionRules[] =
    "mc_sf_paced, mc_sf or mc_fcfs (each with :margin=N,most=K), protect:alpha=A,beta=B or "
    "watermark:share=W,block=K; hindsight takes several, separated by commas";

}  // namespace bfio::sim
