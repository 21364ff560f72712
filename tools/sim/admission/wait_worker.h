// One worker that waits for large batches: WAIT and Nested WAIT, stage by stage.
//
// Purpose: the setting of "Fluid-Based Online Scheduling under Memory Constraints": Poisson arrivals of
// requests of several types, where an iteration takes d0 + d1 times the tokens held by the batch and advances
// each of the batch's requests by one stage. In WAIT types are known: a type is ready when its threshold is
// reached at stage 0. In Nested WAIT they are not: a request enters a segment of stages when it outlives the
// previous one. This is the paper's discrete model, not the engines' (worker/scheduler/engine_model.h): a
// batch takes requests stage by stage. Deterministic for its seed. Threads: any, no state.
//
// Memory, where it is bounded: a request starts only while memory suffices with the batch's new tokens. The
// paper leaves open what happens beyond. Here, as long as memory refuses a start, no request that has started
// pauses, because requests that end release memory. If the batch's new tokens do not fit, those of its
// requests that started last are evicted and start again, as in fcfs_worker.h.
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
  // Over the whole run, starting from an empty worker; a prompt counts as one token.
  double tokens_per_s = 0;
  // What arrived meanwhile: tokens of all stages of the requests.
  double offered_tokens_per_s = 0;
  // Means over completed requests, in seconds.
  double mean_latency = 0, mean_ttft = 0;
  int64_t completed = 0, iterations = 0, evictions = 0;
  // Tokens of the largest batch; largest number of tokens held by all requests that had started.
  int64_t peak_batch = 0, peak_resident = 0;
  // Mean number of requests that wait at stage 0, and before each further segment, sampled at each iteration.
  std::vector<double> mean_waiting;
};

struct WaitOptions {
  IterationTime time;
  // The worker's memory in tokens (C in the paper), 0: no bound; and the share of it that starts leave free.
  int64_t memory = 0;
  double watermark = 0.01;
  // Seconds during which requests arrive.
  double horizon = 100;
  uint64_t seed = 1;
  // Factor on the rates at a time, at most `most_intensity`; empty: constant rates.
  std::function<double(double at)> intensity;
  double most_intensity = 1;
};

// REQUIRES: a threshold of at least 1 for each type.
WaitRun RunWait(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds,
                const WaitOptions& options);
// The same with the tuner's thresholds; the tuner is informed of every arrival. REQUIRES: a tuner of these
// types.
WaitRun RunTunedWait(absl::Span<const RequestType> types, WaitTuner& tuner, const WaitOptions& options);
// `segments` of the types. REQUIRES: a threshold of at least 1 for each segment, types sorted by output.
WaitRun RunNestedWait(absl::Span<const RequestType> types, const Segments& segments,
                      absl::Span<const int64_t> thresholds, const WaitOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_WAIT_WORKER_H_
