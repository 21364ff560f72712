// Decides on the worker which of the placed requests may start, from the KV that is in use.
//
// Purpose: a second check where the router admits more requests than are certain to fit (requests whose KV
// grows on demand). The worker has the KV in use two steps before the router does, and does not depend on the
// router's length predictions. A request that may not start is returned to the router, which keeps its age
// and may place it elsewhere. That leaves a slot empty for the round trip of a plan, but a preemption would
// cost computing a prompt again. Rules:
//   none         a request that fits now starts
//   watermark    a share of memory stays free (vLLM's)
//   kv_feasible  memory suffices at every future step if all requests generate as many tokens as they may,
//                whatever the router predicts: the test of "Online Scheduling for LLM Inference with KV Cache
//                Constraints" (common/kv/mc_sf.h) with upper bounds as lengths, in the order of the plan
//   mc_sf        the same test in MC-SF's order: of the requests that are placed for a step the shortest by
//                max_new_tokens start first, and none after the first that does not fit (Algorithm 1). A
//                request that has waited `most` steps goes before all that have not: in a step in which one
//                such request starts or does not fit, only such requests start, longest waiting first.
// A prompt may be computed in chunks. It holds all its memory from its first step on, and generates its first
// token up to Request::prompt_steps steps later, so its memory is counted as if it came at once and stayed
// so much longer: an upper bound in every step. A request that takes longer still, or whose decodes wait
// (some schedulers pause them), is entered again with every such step, and memory that was promised to others
// may not suffice then: the engine preempts.
//
// Exempt from the rules: a request that reserves its largest size, and any request on an empty worker. No
// request is refused forever: the router, and worker/serve without one, make a request that was refused too
// often reserve (RequestSpec::refusals).
//
// Pure. Threads: used by one thread. Units: tokens, steps. Cost of the last two rules, with n requests that
// run: O(log n) for one that starts, has its first token or ends, O(n) for the test of one (a few ns for each
// that runs), O(1) for a token, O(1) a step for each whose prompt is not computed, or O(log n) if it takes
// longer than expected, and O(n log n) for a step in which decodes wait. Memory O(n). The number of tokens
// does not matter.
#ifndef BFIO_WORKER_SCHEDULER_KV_ADMISSION_H_
#define BFIO_WORKER_SCHEDULER_KV_ADMISSION_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/kv/mc_sf.h"

namespace bfio::worker {

struct KvAdmissionOptions {
  enum class Kind { kNone, kWatermark, kKvFeasible, kMcSf };
  Kind kind = Kind::kNone;
  // For kWatermark: share of memory that stays free, in [0, 1).
  double share = 0;
  // For kMcSf: steps after which a waiting request goes before all younger ones, at least 1.
  int64_t most_steps = 256;
};

// "none", "kv_feasible", "mc_sf", "mc_sf:most=K" or "watermark:share=W". INVALID_ARGUMENT, naming the error.
absl::StatusOr<KvAdmissionOptions> ParseKvAdmission(absl::string_view text);

class KvAdmission {
 public:
  struct Request {
    uint64_t id = 0;
    int64_t prompt_tokens = 0;
    int64_t max_new_tokens = 0;
    // Whether its KV grows on demand.
    bool on_demand = false;
    // Steps that it had waited when it was placed.
    int64_t waited_steps = 0;
    // The most steps, beyond one, that its prompt is expected to take.
    int64_t prompt_steps = 0;
  };

  KvAdmission(const KvAdmissionOptions& options, int64_t kv_tokens)
      : options_(options), kv_tokens_(kv_tokens) {}

  // Whether the rules use Request::prompt_steps.
  bool tests_ends() const {
    return options_.kind == KvAdmissionOptions::Kind::kKvFeasible ||
           options_.kind == KvAdmissionOptions::Kind::kMcSf;
  }
  // The indices of a plan's requests in the order in which they are to be checked; empty: as given.
  void Sort(absl::Span<const Request> requests, std::vector<int32_t>& order) const;

  // RESOURCE_EXHAUSTED: the request may not start in the next step. `free_kv_tokens`: unused KV tokens of the
  // engine. Calls for a step are in the order of Sort.
  absl::Status Check(const Request& request, int64_t free_kv_tokens);

  // The request starts in the next step. REQUIRES: no request with this id runs.
  void Begin(const Request& request);
  // The request generated a token in this step.
  void OnToken(uint64_t id);
  // The request has ended, or holds nothing any more.
  void Remove(uint64_t id);
  // A step has ended; OnToken and Remove were called for all of its tokens and ends.
  void EndStep();

 private:
  struct Running {
    // KV tokens that it holds in the current step (the one under way, or the next one), and the most steps in
    // which it may still generate a token.
    int64_t tokens = 0;
    int64_t steps = 0;
    bool on_demand = false;
    // It has generated no token yet; and the most steps, beyond one, that its prompt takes from its first
    // step on.
    bool waits = true;
    int64_t prompt_steps = 0;
    // Its first step, and the last step in which it generated a token.
    int64_t first_step = 0;
    int64_t token_step = -1;
  };

  bool Fits(const Request& request, int64_t free_kv_tokens);
  bool Overdue(const Request& request) const { return request.waited_steps >= options_.most_steps; }
  // What it holds from the next step on.
  KvCourse CourseOf(const Running& running) const;
  void Enter(uint64_t id, const Running& running);
  // After a step: enters again the requests whose memory changes at other times than expected.
  void EnterPrompts();
  void EnterPaused();

  const KvAdmissionOptions options_;
  const int64_t kv_tokens_;
  absl::flat_hash_map<uint64_t, Running> running_;
  // From here on for tests_ends(). The time of memory_ is the step under way, or the next one.
  McSf memory_;
  // Requests that had no token before this step, and some that have ended.
  std::vector<uint64_t> prompts_;
  // Number of requests in running_ that had a token in this step.
  int64_t step_tokens_ = 0;
  // For kMcSf, until the step ends: whether a request did not fit, and whether an overdue one started.
  bool closed_ = false, only_overdue_ = false;
};

// The most steps, beyond one, that a prompt takes behind `pending` other prompt tokens when each step
// computes at least `rate` of them. REQUIRES: prompt >= 1, rate >= 1.
inline int64_t StepsOfPrompt(int64_t pending, int64_t prompt, int64_t rate) {
  return (pending + prompt - 1) / rate;
}

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_KV_ADMISSION_H_
