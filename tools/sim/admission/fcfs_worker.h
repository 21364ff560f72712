// One worker that runs all available requests: batching as vLLM's first version and Sarathi do it.
//
// Purpose: what WAIT is compared with, in the same setting (wait_worker.h) and with the same iteration times:
// d0 + d1 times the tokens read and held by the batch. The engines' schedulers form the batches
// (worker/scheduler/batch_scheduler.h: vllm_v0 and sarathi). Requests begin in the order of arrival while
// what is held stays within the memory less a watermark; when decoding runs over it, the newest request is
// evicted and starts again. Deterministic for its seed. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_ADMISSION_FCFS_WORKER_H_
#define BFIO_TOOLS_SIM_ADMISSION_FCFS_WORKER_H_

#include <cstdint>

#include "absl/types/span.h"
#include "tools/sim/admission/wait_worker.h"

namespace bfio::sim {

enum class Batching {
  kPrefillFirst,  // prompts that wait first, alone, up to `token_budget` tokens; else one token for each that
                  // runs
  kChunked,       // a token for each that runs, then pieces of prompts, up to `token_budget` in all
};

struct FcfsOptions {
  Batching batching = Batching::kChunked;
  int64_t token_budget = 512;
  // C, and the share of it that prompts leave free.
  int64_t memory = 120'000;
  double watermark = 0.01;
  // Requests that run at a time; 0: as many as memory holds.
  int64_t most_running = 0;
  WaitOptions run;
};

struct FcfsRun : WaitRun {
  int64_t evictions = 0;
};

FcfsRun RunFcfs(absl::Span<const RequestType> types, const FcfsOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_FCFS_WORKER_H_
