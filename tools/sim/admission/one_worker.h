// One worker, its KV memory and an admission rule, round by round.
//
// Purpose: the setting of "Online Scheduling for LLM Inference with KV Cache Constraints": batches one at a
// time, each gives every running request a token and reads the prompts of those that begin. A round takes
// what the cost says (or 1, for the paper's integer rounds). The worker's true lengths decide when a request
// ends; the rule's predictions are its own. This is the paper's discrete model and not the engines'
// (worker/scheduler/engine_model.h): a round has no token budget, and no prompt is cut. Deterministic.
// Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_ADMISSION_ONE_WORKER_H_
#define BFIO_TOOLS_SIM_ADMISSION_ONE_WORKER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/sim/admission/admission_rule.h"

namespace bfio::sim {

struct KvArrival {
  // Seconds; with integer rounds, the first round that may begin it.
  double at = 0;
  int64_t prompt = 0, output = 1;
  // The rule's information; 0: the true length.
  int64_t believed = 0;
  // The limit that the rule gets; 0: none.
  int64_t most = 0;
};

struct KvRunOptions {
  AdmissionOptions rule;
  // Seconds a round of so many tokens takes; empty: a round is the unit of time.
  std::function<double(int64_t tokens)> round_seconds;
  // Gives up after so many rounds without an end: the rule can never begin what waits.
  int64_t loop_rounds = 100'000;
  // Gives up at this round.
  int64_t max_rounds = int64_t{1} << 40;
  // Asked now and then; false: the run ends there. May be empty.
  std::function<bool()> go_on;
  // The memory in use is kept every so many rounds; 0: not.
  int64_t memory_every = 0;
};

struct KvRun {
  // By arrival, in `round_seconds`' unit: when it began for good, and when it was done; negative: never.
  std::vector<double> began, done;
  // Sum and mean of done - at over what was done.
  double total_latency = 0, mean_latency = 0;
  int64_t completed = 0, rounds = 0;
  // Requests thrown out, with their progress lost or kept, and tokens they had to read or make again.
  int64_t evictions = 0, preemptions = 0, repeated_tokens = 0;
  // The rule went round in circles: it threw out the same requests, all that ran, kRepeats times without one
  // that ended in between; or `loop_rounds` passed without an end.
  bool looped = false;
  static constexpr int kRepeats = 8;
  // Largest memory at the beginning of a round, after evictions and with what begins; rounds in which what
  // ran exceeded the memory when the rule was asked.
  int64_t peak_memory = 0, overflows = 0;
  std::vector<double> memory_time;
  std::vector<int64_t> memory;
};

// Arrivals in the order of `at`. INVALID_ARGUMENT: what the rule's text is wrong in, or a request that can
// never fit.
absl::StatusOr<KvRun> RunOneWorker(absl::string_view rule, const std::vector<KvArrival>& arrivals,
                                   const KvRunOptions& options);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_ADMISSION_ONE_WORKER_H_
