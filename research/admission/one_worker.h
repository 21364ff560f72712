// Simulates one worker, its KV memory and an admission rule, round by round.
//
// Purpose: the setting of "Online Scheduling for LLM Inference with KV Cache Constraints": one batch at a
// time, which generates a token for every running request and computes the prompts of those that start. The
// duration of a round follows from a cost function (or is 1, for the paper's integer rounds). A request ends
// by its true length, which the rule can only predict. This is the paper's discrete model, not the engines':
// a round has no token budget, and no prompt is split. Deterministic. Threads: any, no state.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "research/admission/admission_rule.h"

namespace bfio::sim {

struct KvArrival {
  // Seconds; with integer rounds, the first round in which it may start.
  double at = 0;
  int64_t prompt = 0, output = 1;
  // The output length given to the rule; 0: the true length.
  int64_t believed = 0;
  // The limit given to the rule; 0: none.
  int64_t most = 0;
};

struct KvRunOptions {
  AdmissionOptions rule;
  // Seconds that a round of this many tokens takes; empty: a round is the unit of time.
  std::function<double(int64_t tokens)> round_seconds;
  // The run stops after this many rounds without an end: the rule can never start the waiting requests.
  int64_t loop_rounds = 100'000;
  // The run stops at this round.
  int64_t max_rounds = int64_t{1} << 40;
  // Called from time to time; the run ends when it returns false. May be empty.
  std::function<bool()> go_on;
  // Interval, in rounds, at which the memory in use is recorded; 0: not recorded.
  int64_t memory_every = 0;
};

struct KvRun {
  // By arrival, in the unit of `round_seconds`: when it was started for the last time, and when it ended;
  // negative: never.
  std::vector<double> began, done;
  // Sum and mean of done - at over the completed requests.
  double total_latency = 0, mean_latency = 0;
  int64_t completed = 0, rounds = 0;
  // Numbers of evictions (progress lost) and preemptions (progress kept), and tokens that had to be computed
  // or generated again.
  int64_t evictions = 0, preemptions = 0, repeated_tokens = 0;
  // The rule loops: it evicted the same requests, namely all running ones, kRepeats times without an end in
  // between; or `loop_rounds` passed without an end.
  bool looped = false;
  static constexpr int kRepeats = 8;
  // Largest memory at the beginning of a round, after evictions and with the requests that start; number of
  // rounds in which the running requests exceeded the memory before the rule was called.
  int64_t peak_memory = 0, overflows = 0;
  std::vector<double> memory_time;
  std::vector<int64_t> memory;
};

// Arrivals are ordered by `at`. INVALID_ARGUMENT: an error in the rule's text, or a request that can never
// fit.
absl::StatusOr<KvRun> RunOneWorker(absl::string_view rule, const std::vector<KvArrival>& arrivals,
                                   const KvRunOptions& options);

}  // namespace bfio::sim
