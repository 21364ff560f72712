// One rank of an engine with continuous batching, like vLLM: slots, a token budget, KV blocks with prefix
// caching. The cost of a placement. A step first computes the next tokens of running requests in order of
// admission. Then it admits waiting ones, first come, first served, while slot, budget and the whole prompt's
// blocks are free. If a running request gets no block, the one admitted last is preempted: it returns to the
// front of the queue and is recomputed. A request that ends releases its blocks, last block first. Ownership:
// borrows the requests. Threads: one. Units: tokens, seconds.
#ifndef BFIO_TOOLS_SIM_PREFIXES_ENGINE_MODEL_H_
#define BFIO_TOOLS_SIM_PREFIXES_ENGINE_MODEL_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/cost/batch_time.h"
#include "tools/sim/prefixes/block_pool.h"

namespace bfio::sim {

// Llama-3-8B in 16 bits on an H100. C: reading 16 GB of weights, and the time between steps. A, K1: 16e9
// operations per token and 524,288 per pair of tokens that attend to each other, at half of 989e12 operations
// per second. K2: 131,072 bytes of KV per token at 80 % of 3.35e12 bytes per second.
inline constexpr BatchCost kEngineCost = {.c_s = 7.5e-3,
                                          .a_s_per_token = 0.027e-3,
                                          .b0_tokens = 220,
                                          .k1_s_per_pair = 1.05e-9,
                                          .k2_s_per_token = 4.85e-8};

struct EngineModelOptions {
  int32_t slots = 64;
  int64_t token_budget = 2048;
  int64_t kv_tokens = 200'000;
  bool caches = true;
  // It computes prompts up to a level that the router sets (vLLM with bfio's scheduler class).
  bool metered = false;
  BatchCost cost = kEngineCost;
};

// A request in the engine, with what a router in front of the engine can observe.
struct HeldRequest {
  const PrefixRequest* request = nullptr;
  int64_t generated = 0;
  // Tokens computed in steps, without those found in the cache.
  int64_t computed = 0;
  // Tokens that it has to compute; for a waiting request without regard to the cache.
  int64_t left = 0;
};

// The results of a step.
struct EngineStep {
  struct First {
    const PrefixRequest* request = nullptr;
    // Prompt tokens found in the cache when it was first admitted.
    int64_t cached = 0;
  };
  std::vector<First> first_tokens;
  std::vector<const PrefixRequest*> finished;
  // Prompt and generated tokens of all requests in the engine during the step, waiting ones included.
  int64_t load_tokens = 0;
};

class EngineModel {
 public:
  // REQUIRES: all options are positive.
  explicit EngineModel(const EngineModelOptions& options);

  // REQUIRES: prompt and output fit into the memory.
  void Submit(const PrefixRequest& request);

  bool idle() const { return running_.empty() && waiting_.empty(); }
  bool in_step() const { return in_step_; }
  // The time up to which the next steps compute prompts; empty: up to the token budget.
  void SetLevel(std::optional<double> level_s) { level_s_ = level_s; }
  // Begins a step and returns its duration. REQUIRES: !idle() && !in_step().
  double BeginStep();
  // Ends the step.
  EngineStep EndStep();

  // Prompt tokens that are in the cache now: whole blocks, and always fewer than the prompt has.
  int64_t Cached(const PrefixRequest& request) const;
  // Running requests in order of admission, then waiting ones.
  std::vector<HeldRequest> Held() const;
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t preemptions() const { return preemptions_; }
  const BlockPool& pool() const { return pool_; }

 private:
  struct Entry {
    const PrefixRequest* request = nullptr;
    // Tokens whose KV is in memory, and tokens to compute in the current step.
    int64_t computed = 0, scheduled = 0;
    int64_t generated = 0;
    // Negative: not admitted yet.
    int64_t cached = -1;
    std::vector<BlockPool::Block> blocks;

    int64_t tokens() const { return request->prompt_tokens + generated; }
  };

  std::vector<BlockPool::Block> Match(const Entry& entry) const;
  // Prompt tokens of the next step within the level.
  int64_t Allotment() const;
  // Allocates the blocks of the next tokens; false: too few are free.
  bool Extend(Entry& entry, int64_t tokens);
  void Schedule(Entry& entry, int64_t tokens, BatchLoad& batch);
  // Returns whether a preempted request is waiting.
  bool ScheduleRunning(BatchLoad& batch);
  void Admit(BatchLoad& batch);
  void Preempt();
  void Release(Entry& entry);

  const EngineModelOptions options_;
  BlockPool pool_;
  std::vector<Entry> running_;
  std::deque<Entry> waiting_;
  bool in_step_ = false;
  std::optional<double> level_s_;
  // Prompt tokens that the step may still compute.
  int64_t prompt_tokens_left_ = 0;
  int64_t preemptions_ = 0;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_PREFIXES_ENGINE_MODEL_H_
