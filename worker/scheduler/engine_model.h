// A model of one engine: requests arrive, batches start and end. No language model, no clock.
//
// Purpose: the engine of "Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents" (batches
// one after the other, none is changed once it has started), for simulations of one engine or of networks of
// them, and for an engine that evaluates another token budget (budget_tuner.h). The driver has the clock: it
// calls Start when no batch runs, and End after the seconds that Start returned. Deterministic.
//
// Threads: belongs to its caller. Pure. Cost: Start costs what the scheduler does; the rest is linear in the
// batch, and in the requests when one ends.
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
  // The most requests that have started and not ended.
  int64_t slots = BatchCapacity::kUnbounded;
  int64_t kv_tokens = BatchCapacity::kUnbounded;
  // True: a request starts only when prompt + decodes fit in the free part of kv_tokens. False: it starts
  // anyway, and tokens in the caches beyond kv_tokens cost BatchCost's overflow.
  bool reserve_kv = true;
  BatchCost cost;
  // Lower bound of a batch's time in seconds: ranks in a barrier wait for one another.
  double least_s = 0;
  // True: the last chunk of a prompt generates the first token, as in real engines, and `decode` - 1 decodes
  // follow. False: `decode` decodes follow, as in the paper.
  bool prompt_gives_token = false;
};

struct ModelRequest {
  // Chosen by the caller.
  int64_t id = 0;
  // Tokens, each at least 1.
  int64_t prefill = 1;
  int64_t decode = 1;
  int64_t priority = 0;
};

// The tokens that a request generates after its prompt is computed. TPOT is the time they take divided by
// their number; if that is 0, a request has no TPOT.
inline int64_t TokensAfterPrompt(int64_t decode, bool prompt_gives_token) {
  return decode - (prompt_gives_token ? 1 : 0);
}

class EngineModel {
 public:
  EngineModel(const EngineModelOptions& options, BatchScheduler scheduler)
      : options_(options), scheduler_(std::move(scheduler)) {}

  // Adds a request to those that the next batch may contain. Calls are in the order of arrival.
  void Arrive(const ModelRequest& request);

  // Starts a batch and returns its duration in seconds; absent when there is nothing to compute (or the
  // scheduler is blocked: tokens() > 0). REQUIRES: no batch runs.
  std::optional<double> Start();
  bool running() const { return !batch_.empty(); }
  // The running batch. Chunk::which is an index in requests().
  absl::Span<const Chunk> batch() const { return batch_; }
  const BatchLoad& load() const { return load_; }

  struct Ended {
    // Ids of the requests whose last prompt token was computed in this batch; that generated a later token;
    // that have no tokens left.
    std::vector<int64_t> prefilled, decoded, completed;
  };
  // Ends the running batch. `ended` is cleared first. REQUIRES: a batch runs.
  void End(Ended& ended);

  // Sets the budget of later batches, at least 1.
  void set_token_budget(int64_t tokens) { options_.token_budget = tokens; }
  const EngineModelOptions& options() const { return options_; }
  int64_t token_budget() const { return options_.token_budget; }

  // Tokens left of all requests: prompts and decodes, started or not.
  int64_t tokens() const { return tokens_; }
  // The prompt tokens among them.
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t requests_count() const { return static_cast<int64_t>(left_.size()); }
  // In the order of arrival.
  absl::Span<const BatchRequest> requests() const { return left_; }
  // Tokens in the KV caches.
  int64_t resident_tokens() const { return resident_tokens_; }
  BatchCapacity capacity() const;
  const BatchScheduler& scheduler() const { return scheduler_; }

 private:
  struct Computed {
    int64_t id;
    // Number of computed prompt tokens, and of all tokens in the cache.
    int64_t prefill, cached;
  };

  EngineModelOptions options_;
  BatchScheduler scheduler_;
  // In the order of arrival, with equal indices.
  std::vector<BatchRequest> left_;
  std::vector<Computed> computed_;
  std::vector<Chunk> batch_;
  BatchLoad load_;
  int64_t tokens_ = 0, prompt_tokens_ = 0, resident_tokens_ = 0;
  int64_t begun_ = 0, reserved_ = 0;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_SCHEDULER_ENGINE_MODEL_H_
