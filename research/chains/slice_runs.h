// One run of Table 1's setting of "Serving Chain-structured Jobs with Large Memory Footprints" as a JSON
// object: LLaMA-2-7B on three 40 GB and six 20 GB slices of GPUs, requests in bursts.
//
// Purpose: research/chains.py makes the table from it. Lengths are drawn from a trace; gaps follow the Azure
// code trace: bursts of about 150 requests at 11 per second, then silence. Deterministic for the seed. Times
// in seconds. Threads: any, no state.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/workload/trace.h"
#include "nlohmann/json.hpp"

namespace bfio::sim {

struct SliceRun {
  // Factors of the times. 1 and 1: as computed from the hardware's data; 3 and 3: a request's service takes 7
  // to 9 s on average, as the paper measured on real servers; 9 and 0: the extreme in favour of chains of
  // several servers, because only blocks take time.
  double compute = 1, communication = 1;
  int64_t jobs = 1000;
  uint64_t seed = 1;
};

// INVALID_ARGUMENT, listing the known systems, for an unknown one; FAILED_PRECONDITION: it cannot serve the
// model. REQUIRES: the trace has requests.
absl::StatusOr<nlohmann::ordered_json> RunOnSlices(const SliceRun& run, const std::string& system,
                                                   const Trace& trace);

}  // namespace bfio::sim
