// What the KV-memory experiments (kv-high, kv-low, kv-alpha, kv-beta) share.
//
// Purpose: the setting of "Online Scheduling for LLM Inference with KV Cache Constraints", Section 5: one
// worker (Llama-2-70B on two A100: 16,492 tokens of KV), Poisson arrivals, 10,000 conversations, batches that
// take what a documented cost model says. Threads: any, no state.
#ifndef BFIO_TOOLS_SIM_EXPERIMENT_KV_STUDY_H_
#define BFIO_TOOLS_SIM_EXPERIMENT_KV_STUDY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/sim/admission/one_worker.h"
#include "tools/sim/experiment/experiment.h"

namespace bfio::sim {

// M as the paper states and uses it. (Its own formula, 2 x 80 layers x 8192 x 2 bytes a token in the 20 GB
// that 160 GB leave beside 140 GB of weights, gives 7,629.)
inline constexpr int64_t kKvMemory = 16'492, kKvMemoryByFormula = 7'629;

// Seconds of a batch: 45.5 ms, and 0.30 ms for each token beyond 64. The fit that "Throughput-Optimal
// Scheduling Algorithms for LLM Inference and AI Agents" gives for the same model and machines.
double KvBatchSeconds(int64_t tokens);

// Lengths. "lmsys": lognormal with the medians and means of lmsys-chat-1m that the paper states (prompts 11
// and 40.62, answers 45 and 85.32), rounded, 1 to 2,000. Else: rows of a workload, drawn with replacement,
// those that exceed the memory left out.
struct KvLengths {
  std::string name;
  std::shared_ptr<const Trace> trace;  // null: lmsys
};

// Poisson arrivals at `rate` per second with lengths of their own for each seed.
std::vector<KvArrival> KvArrivals(const KvLengths& lengths, double rate, int64_t requests, int64_t memory,
                                  uint64_t seed);

struct KvCase {
  std::string rule;
  KvLengths lengths;
  double rate = 50;
  int64_t memory = kKvMemory;
  // Multiplies the seconds of a batch.
  double slowness = 1;
  int64_t memory_every = 0;
};

// The first `requests` arrivals of every case with every seed: by case, then seed.
struct KvPlan {
  KvCase of;
  int64_t requests = 0;
};
absl::StatusOr<std::vector<std::vector<KvRun>>> RunKv(const ExperimentContext& context,
                                                      const std::vector<KvPlan>& plans);

// Mean latency, s. No samples where the rule went round in circles for some seed.
Estimate KvLatency(const std::vector<KvRun>& runs);
bool AnyLooped(const std::vector<KvRun>& runs);

std::vector<std::pair<std::string, std::string>> KvParameters(const ExperimentContext& context,
                                                              int64_t requests);

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_EXPERIMENT_KV_STUDY_H_
