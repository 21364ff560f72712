// One worker that waits for large batches: WAIT and Nested WAIT, stage by stage.
//
// Purpose: the setting of "Fluid-Based Online Scheduling under Memory Constraints": Poisson arrivals of
// requests in types, an iteration takes d0 + d1 times the tokens held by the batch, each request of a batch
// advances one stage. WAIT has types: a type is ready when its threshold is reached at stage 0. Nested WAIT
// does not: a request enters a segment of stages when it outlives the one before. This is the paper's
// discrete model and not the engines' (worker/scheduler/engine_model.h): a batch takes requests stage by
// stage, and memory has no bound. Deterministic for its seed. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_ADMISSION_WAIT_WORKER_H_
#define BFIO_TOOLS_SIM_ADMISSION_WAIT_WORKER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "tools/sim/admission/fluid.h"
#include "tools/sim/admission/wait_tuner.h"

namespace bfio::sim {

struct WaitRun {
  // Over the whole run, from an empty worker on; a prompt counts as one token.
  double tokens_per_s = 0;
  // Of what was completed, s.
  double mean_latency = 0, mean_ttft = 0;
  int64_t completed = 0, iterations = 0;
  // Tokens of the largest batch, and held by all that had begun.
  int64_t peak_batch = 0, peak_resident = 0;
  // At each iteration: requests that wait at stage 0, and before each further segment; means.
  std::vector<double> mean_waiting;
};

struct WaitOptions {
  IterationTime time;
  // Seconds of arrivals.
  double horizon = 100;
  uint64_t seed = 1;
  // Rates times this at a time, at most `most_intensity`; empty: constant rates.
  std::function<double(double at)> intensity;
  double most_intensity = 1;
};

// REQUIRES: a threshold of at least 1 for each type.
WaitRun RunWait(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds,
                const WaitOptions& options);
// The same with the tuner's thresholds; it sees every arrival. REQUIRES: a tuner of these types.
WaitRun RunTunedWait(absl::Span<const RequestType> types, WaitTuner& tuner, const WaitOptions& options);
// `segments` of the types; REQUIRES: a threshold of at least 1 for each segment, types sorted by output.
WaitRun RunNestedWait(absl::Span<const RequestType> types, const Segments& segments,
                      absl::Span<const int64_t> thresholds, const WaitOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_WAIT_WORKER_H_
