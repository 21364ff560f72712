// Decides on the worker which of the placed requests may start, from the KV that is in use.
//
// Purpose: a second check where the router admits more requests than are certain to fit (requests whose KV
// grows on demand). The worker has the KV in use two steps before the router does, whatever the router
// predicts of lengths. A request that may not start is returned to the router, which keeps its age and may
// place it elsewhere. That leaves a slot empty for the round trip of a plan, but a preemption would cost
// computing a prompt again. Rules:
//   none         a request that fits now starts
//   watermark    a share of memory stays free (vLLM's)
//   kv_feasible  memory suffices at every future step if all requests generate as many tokens as they may,
//                one per step, whatever the router predicts. This is the test of MC-SF (Algorithm 1 of
//                "Online Scheduling for LLM Inference with KV Cache Constraints") with upper bounds as
//                lengths. A preemption is still possible when requests wait within a batch (chunked
//                prompts) and generate their tokens later, or when a later request reserves its KV, which
//                the rule does not check.
// Exempt from the rule: a request that reserves its largest size, and any request on an empty worker. No
// request is refused forever: the router makes one that was refused too often reserve
// (RequestSpec::refusals). Pure. Threads: used by one thread. Units: tokens, steps.
#ifndef BFIO_WORKER_SCHEDULER_KV_ADMISSION_H_
#define BFIO_WORKER_SCHEDULER_KV_ADMISSION_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bfio::worker {

struct KvAdmissionOptions {
  enum class Kind { kNone, kWatermark, kKvFeasible };
  Kind kind = Kind::kNone;
  // For kWatermark: share of memory that stays free, in [0, 1).
  double share = 0;
};

// "none", "kv_feasible" or "watermark:share=W". INVALID_ARGUMENT, naming the error.
absl::StatusOr<KvAdmissionOptions> ParseKvAdmission(absl::string_view text);

class KvAdmission {
 public:
  struct Request {
    uint64_t id = 0;
    int64_t prompt_tokens = 0;
    int64_t max_new_tokens = 0;
    // Its KV grows on demand.
    bool on_demand = false;
  };

  KvAdmission(const KvAdmissionOptions& options, int64_t kv_tokens)
      : options_(options), kv_tokens_(kv_tokens) {}

  // RESOURCE_EXHAUSTED: it may not start in the next step. `free_kv_tokens`: unused KV tokens of the engine.
  absl::Status Check(const Request& request, int64_t free_kv_tokens);

  // The request starts in the next step. REQUIRES: no request with this id runs.
  void Begin(const Request& request);
  // The request generated a token.
  void OnToken(uint64_t id);
  // The request has ended.
  void Remove(uint64_t id) { running_.erase(id); }

 private:
  struct Running {
    // KV tokens that it holds in the next step, and the most steps that it may still run, including that one.
    int64_t tokens = 0;
    int64_t steps = 0;
    bool on_demand = false;
  };

  bool Holds(const Request& request, int64_t free_kv_tokens);
  bool HoldsToEveryEnd(const Request& request);

  const KvAdmissionOptions options_;
  const int64_t kv_tokens_;
  absl::flat_hash_map<uint64_t, Running> running_;
  // Reused buffer of steps and tokens.
  std::vector<std::pair<int64_t, int64_t>> ends_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_KV_ADMISSION_H_
