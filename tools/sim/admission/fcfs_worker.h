// One worker that runs all available requests: batching as in vLLM's first version and in Sarathi.
//
// Purpose: the baseline for WAIT, in the same setting (wait_worker.h) and with the same iteration times: d0 +
// d1 times the tokens computed and held by the batch. The engines' schedulers form the batches
// (worker/scheduler/batch_scheduler.h: vllm_v0 and sarathi). Requests start in the order of arrival while the
// tokens held, and those that the running requests add, stay within the memory minus a watermark. When these
// exceed the memory, the newest request is evicted and starts again. Deterministic for its seed. Threads:
// any, no state.
#ifndef BFIO_TOOLS_SIM_ADMISSION_FCFS_WORKER_H_
#define BFIO_TOOLS_SIM_ADMISSION_FCFS_WORKER_H_

#include <cstdint>

#include "absl/types/span.h"
#include "tools/sim/admission/wait_worker.h"

namespace bfio::sim {

enum class Batching {
  kPrefillFirst,  // waiting prompts first, alone, up to `token_budget` tokens; otherwise one token for each
                  // running request
  kChunked,       // one token for each running request, then chunks of prompts, up to `token_budget` in all
};

struct FcfsOptions {
  Batching batching = Batching::kChunked;
  int64_t token_budget = 512;
  // Maximum number of running requests; 0: as many as the memory holds.
  int64_t most_running = 0;
  // REQUIRES: memory > 0.
  WaitOptions run;
};

WaitRun RunFcfs(absl::Span<const RequestType> types, const FcfsOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_FCFS_WORKER_H_
