// Which of the requests placed on a worker may begin, as the worker itself sees its KV.
//
// Purpose: the second line of defence where the router lets in more than fits for certain (requests whose
// KV grows on demand): it sees what is held now, two steps before the router does, whatever it predicts
// of lengths. Who may not begin goes back to the router, which keeps its age and may place it elsewhere; that
// costs a slot for a plan's way, and a preemption costs the computing of a prompt. Rules:
//   none         a request that fits now begins
//   watermark    a share of memory stays free (vLLM's)
//   kv_feasible  memory holds at every time to come if all make as many tokens as they may, one a step (the
//                test of MC-SF with limits for lengths): nothing runs out, whatever the router predicts. A
//                preemption may come after all where requests wait within a batch (chunked prompts) and make
//                theirs later, or where one comes after them that reserves, which the rule does not ask.
// Exempt from the rule: a request that reserves its largest size, and any request on an empty worker.
// No request is kept out for ever: the router makes one that was refused too often reserve
// (RequestSpec::refusals). Pure. Threads: one. Units: tokens, steps.
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
  // watermark: in [0, 1).
  double share = 0;
};

// "none", "kv_feasible" or "watermark:share=W". INVALID_ARGUMENT names what is wrong.
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

  // RESOURCE_EXHAUSTED: it may not begin in the next step. `free_kv_tokens` are the unused ones.
  absl::Status Check(const Request& request, int64_t free_kv_tokens);

  // It begins in the next step. REQUIRES: no request of this id runs.
  void Begin(const Request& request);
  // It made a token.
  void OnToken(uint64_t id);
  // It runs no longer.
  void Remove(uint64_t id) { running_.erase(id); }

 private:
  struct Running {
    // What it holds in the next step, and the steps it may run, that one included.
    int64_t tokens = 0;
    int64_t steps = 0;
    bool on_demand = false;
  };

  bool Holds(const Request& request, int64_t free_kv_tokens);
  bool HoldsToEveryEnd(const Request& request);

  const KvAdmissionOptions options_;
  const int64_t kv_tokens_;
  absl::flat_hash_map<uint64_t, Running> running_;
  // Scratch: steps and tokens.
  std::vector<std::pair<int64_t, int64_t>> ends_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_KV_ADMISSION_H_
