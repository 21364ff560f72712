// The rules by which today's engines place prompts and limit the prompt tokens of a step (serve_rule.h).
#ifndef BFIO_TOOLS_SIM_SERVE_ENGINE_RULES_H_
#define BFIO_TOOLS_SIM_SERVE_ENGINE_RULES_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "tools/sim/serve/serve_rule.h"

namespace bfio::sim {

// Binds a request to a rank on arrival. A rank's decodes come first; its prompts fill the rest of the budget.
class InstantRule : public ServeRule {
 public:
  explicit InstantRule(int64_t budget) : budget_(budget) {}
  void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) final;

 protected:
  // Binds requests of the pool, and adds their prompts to `tokens` (by rank: bound, not yet computed).
  virtual void Place(const ServeView& view, std::deque<ServeRequestIndex>& pool, std::vector<int64_t>& tokens,
                     ServePlan& plan);
  // A request goes to the rank with the smallest sum of running requests and weighted queued requests. This
  // is the weight of a queued request; vLLM's own weight by default.
  virtual int64_t WeightOfQueued() const { return 4; }
  // `tokens`: by rank, prompt tokens bound and not yet computed.
  virtual void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan);

  int64_t budget() const { return budget_; }
  // Prompt tokens that the budget leaves after the rank's decodes.
  int64_t PromptCapacity(const ServeRank& rank) const;
  // Number of prompts bound to rank g that have no slot yet.
  static int64_t Queued(const ServeView& view, const ServePlan& plan, size_t g);
  // Number of them that begin when it computes up to `most` prompt tokens.
  static int64_t Begins(const ServeView& view, const ServePlan& plan, size_t g, int64_t most);
  // Lets every rank compute up to its PromptCapacity; without a call, ranks compute no prompt tokens.
  void Release(const ServeView& view, ServePlan& plan) const;

 private:
  const int64_t budget_;
};

// vLLM: the base class without additions.
class VllmRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;
};

// vLLM's prefill_schedule_interval, 2 here, as merged (read in 0.33: v1/engine/core.py, v1/core/sched):
// prompts only in every second step, the same on all ranks. A rank ignores it while none of its requests
// decodes, and after a step in which it computed prompts and left some waiting.
class VllmCadenceRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  // By rank: its last step with prompts left some waiting.
  std::vector<bool> bound_;
};

// SGLang with its prefill delayer: in a step a rank computes either a chunk of prompts or decodes, never
// both. Ranks vote whether they have a prompt to begin. Prompts begin when all ranks have one; when only some
// have one they are delayed, at most until the thirtieth pass. When all have one they are delayed as long,
// except the first time, while the fullest rank has fewer free slots than the most prompts of any rank's last
// 16 passes that could begin some. A prompt that has begun continues in every pass. Requests go to the rank
// with the fewest. As sglang 0.5.23, managers/prefill_delayer.py, by default: its trigger by queue length is
// off. The watermark on KV use is omitted, because KV memory is not limited here. There is no delay when no
// request decodes.
class SglangDelayerRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  int64_t WeightOfQueued() const override { return 1; }
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  int64_t delayed_ = 0;
  bool first_ = true;
  // By rank: prompts begun, or that could have begun, in its last passes.
  std::vector<std::deque<int64_t>> attempts_;
};

// ATOM's coalescer (#930, #1611, with the bounds documented there). Prompts are held until every rank has
// some, and the ranks together have 0.7 of a full step or the total has not grown for 3 steps. They are held
// for at most 30 steps, or 8 when a prompt has begun. They are not held when no request decodes.
class AtomCoalescerRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  // `ready`: ranks that could compute prompts. `pending`: their prompt tokens, at most a budget per rank.
  bool Holds(const ServeView& view, int64_t ready, int64_t pending, bool begun);
  int64_t held_ = 0, stalled_ = 0;
  // `pending` of the previous step, while prompts are held; -1: they were not held.
  int64_t pending_before_ = -1;
};

// TensorRT-LLM's attention-DP balance. Placement as in router/core/policy/trtllm: one request per free slot
// leaves the pool, the oldest first. The longest prompt is placed first, on the rank with the fewest tokens,
// then fewest requests, among those below max(ceil(requests / ranks), most requests of any rank). Tokens are
// the residents' KV tokens and prompts; TensorRT-LLM counts prompts alone. If all ranks decode, prompts wait
// until every rank has one and a free slot, and then for batching_wait_iters = 10 more steps. Every 50th step
// (timeout_iters) in which some rank has no prompt computes them anyway.
class TrtllmAdpRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  void Place(const ServeView& view, std::deque<ServeRequestIndex>& pool, std::vector<int64_t>& tokens,
             ServePlan& plan) override;
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  int64_t waited_ = 0, batched_ = 0;
};

// tpu-inference (#2577): prompts are delayed until every rank has one, unless no request decodes. The source
// states no bound; here the delay is at most 30 steps, as for the others.
class TpuBatchRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  int64_t held_ = 0;
};

// bfio's rule before the step time level: requests wait in one pool for a slot and go to the rank with the
// fewest tokens (an uncomputed prompt token counts 16). No rank computes more than the mean pending tokens.
class EqualChunksRule final : public ServeRule {
 public:
  explicit EqualChunksRule(int64_t budget) : budget_(budget) {}
  void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) override;

 private:
  const int64_t budget_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_ENGINE_RULES_H_
