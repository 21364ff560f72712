// One engine as a scheduler and a cost see it: requests come, batches start and end. No model, no clock.
//
// Purpose: the paper's engine (batches one after the other, none is changed once it has started), for
// simulations of one engine or of networks of them, and for an engine that asks how another token budget
// would have served it (budget_tuner.h). The driver has the clock: it calls Start when nothing runs, and End
// after the seconds that Start named. Deterministic.
//
// Threads: belongs to its caller. Pure. Cost: Start is the scheduler's; the rest is linear in the batch, and
// in the requests when one ends.
#ifndef BFIO_WORKER_SCHEDULER_ENGINE_MODEL_H_
#define BFIO_WORKER_SCHEDULER_ENGINE_MODEL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/cost/batch_time.h"
#include "worker/scheduler/batch_scheduler.h"

namespace bfio::worker {

struct EngineModelOptions {
  int64_t token_budget = 512;
  // Requests that have begun and not ended.
  int64_t slots = BatchRoom::kUnbounded;
  int64_t kv_tokens = BatchRoom::kUnbounded;
  // True: a request begins only when prompt + decodes fit into what is free of kv_tokens. False: it begins,
  // and what is in the caches beyond kv_tokens costs BatchCost's overflow.
  bool reserve_kv = true;
  BatchCost cost;
  // No batch ends sooner: ranks in a barrier wait for one another.
  double least_s = 0;
  // A request's first token comes with the last piece of its prompt, as engines do it, so that `decode` - 1
  // decodes follow. False: the paper's way, `decode` of them.
  bool prompt_gives_token = false;
};

struct ModelRequest {
  // The caller's.
  int64_t id = 0;
  // Tokens, each at least 1.
  int64_t prefill = 1;
  int64_t decode = 1;
  int64_t priority = 0;
};

// Tokens of a request that come after its prompt is computed, one by one: TPOT is the time they take over
// their number, and there is none where this is 0.
inline int64_t TokensAfterPrompt(int64_t decode, bool prompt_gives_token) {
  return decode - (prompt_gives_token ? 1 : 0);
}

class EngineModel {
 public:
  EngineModel(const EngineModelOptions& options, BatchScheduler scheduler)
      : options_(options), scheduler_(std::move(scheduler)) {}

  // It can be in the next batch that starts. Calls are in the order of arrival.
  void Arrive(const ModelRequest& request);

  // Starts a batch of what is here and says how many seconds it takes; none when there is nothing to compute
  // (or the scheduler is stuck: tokens() > 0). REQUIRES: none runs.
  std::optional<double> Start();
  bool running() const { return !batch_.empty(); }
  // Of the batch that runs. Chunk::which is a place in requests().
  absl::Span<const Chunk> batch() const { return batch_; }
  const BatchLoad& load() const { return load_; }

  struct Ended {
    // Ids: last prompt token computed in this batch; a token generated after that; nothing left.
    std::vector<int64_t> prefilled, decoded, completed;
  };
  // The batch that runs is done. `ended` is cleared first. REQUIRES: one runs.
  void End(Ended& ended);

  // Budgets of later batches, at least 1.
  void set_token_budget(int64_t tokens) { options_.token_budget = tokens; }
  const EngineModelOptions& options() const { return options_; }
  int64_t token_budget() const { return options_.token_budget; }

  // All that is left of all requests: prompts and decodes, begun or not.
  int64_t tokens() const { return tokens_; }
  // Prompt tokens among them.
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t requests_count() const { return static_cast<int64_t>(left_.size()); }
  // In the order of arrival.
  absl::Span<const BatchRequest> requests() const { return left_; }
  // KV in the caches.
  int64_t resident_tokens() const { return resident_tokens_; }
  BatchRoom room() const;
  const BatchScheduler& scheduler() const { return scheduler_; }

 private:
  struct Computed {
    int64_t id;
    // Of the prompt, and in the cache in all.
    int64_t prefill, cached;
  };

  EngineModelOptions options_;
  BatchScheduler scheduler_;
  // In the order of arrival, side by side.
  std::vector<BatchRequest> left_;
  std::vector<Computed> computed_;
  std::vector<Chunk> batch_;
  BatchLoad load_;
  int64_t tokens_ = 0, prompt_tokens_ = 0, resident_tokens_ = 0;
  int64_t begun_ = 0, reserved_ = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_ENGINE_MODEL_H_
