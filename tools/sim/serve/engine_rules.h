// The rules by which today's engines place and meter prompts (serve_rule.h).
#ifndef BFIO_TOOLS_SIM_SERVE_ENGINE_RULES_H_
#define BFIO_TOOLS_SIM_SERVE_ENGINE_RULES_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "tools/sim/serve/serve_rule.h"

namespace bfio::sim {

// Requests are bound to a rank as they come; its prompts fill the step up to the budget, decodes first.
class InstantRule : public ServeRule {
 public:
  explicit InstantRule(int64_t budget) : budget_(budget) {}
  void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) final;

 protected:
  // Binds requests of the pool, and adds their prompts to `tokens`: by rank, bound and not computed.
  virtual void Place(const ServeView& view, std::deque<ServeRequestIndex>& pool, std::vector<int64_t>& tokens,
                     ServePlan& plan);
  // Weight of a request that waits on a rank, relative to one that runs there: the rank with the least sum
  // gets the next. vLLM's own weight by default.
  virtual int64_t WeightOfQueued() const { return 4; }
  // `tokens` and `prompts`: by rank, bound and not computed.
  virtual void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan);

  int64_t budget() const { return budget_; }
  // Prompt tokens that the budget leaves beside the rank's decodes.
  int64_t PromptCapacity(const ServeRank& rank) const;
  // PromptCapacity of every rank, or no prompts at all.
  void Release(const ServeView& view, ServePlan& plan) const;

 private:
  const int64_t budget_;
};

// vLLM: no more than that.
class VllmRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;
};

// vLLM's cadence (#44558): prompts only in every second step, the same on all ranks; suspended while an
// admitting step cannot take all waiting prompts; not applied where no request decodes.
class VllmCadenceRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  bool saturated_ = false;
};

// SGLang with its prefill delayer: a step of a rank is a chunk of prompts or decodes, never both. Ranks vote
// whether they have a prompt to begin: where all have they begin, where some have none they wait, and begin
// in the thirtieth pass at the latest. A prompt that has begun goes on in every pass. Requests go to the rank
// with the fewest. Its watermark on KV use is left out, as KV is not limited here, and nobody waits where no
// request decodes.
class SglangDelayerRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  int64_t WeightOfQueued() const override { return 1; }
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  int64_t delayed_ = 0;
};

// ATOM's coalescer (#930, #1611, with the bounds documented there): prompts are held until every rank has
// some and, over all ranks, 0.7 of a full step waits, or has not grown for 3 steps; for 30 steps at most, 8
// where a prompt has begun. Not where no request decodes.
class AtomCoalescerRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  // `ready`: ranks that could compute prompts. `pending`: their tokens, of each at most a budget.
  bool Holds(const ServeView& view, int64_t ready, int64_t pending, bool begun);
  int64_t held_ = 0, stalled_ = 0;
  // In the step before, of this delay; -1: there was none.
  int64_t pending_before_ = -1;
};

// TensorRT-LLM's attention-DP balance. Placement, as router/core/policy/trtllm: as many requests as have a
// slot leave the pool, the oldest first. The longest prompt is placed first, on the rank with the fewest
// tokens, then requests, among those below max(ceil(requests / ranks), most requests of any rank). Tokens are
// the residents' KV tokens and prompts; the source counts prompts alone. Metering: prompts wait until every
// rank has one and a slot, and then batching_wait_iters 10 more steps; not where some rank has no decodes.
// Every 50th step (timeout_iters) in which not every rank has one lets them go.
class TrtllmAdpRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  void Place(const ServeView& view, std::deque<ServeRequestIndex>& pool, std::vector<int64_t>& tokens,
             ServePlan& plan) override;
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  int64_t waited_ = 0, batched_ = 0;
};

// tpu-inference (#2577): prompts are delayed until one has come for each rank; not where no request decodes.
// It states no bound; here the delay is at most 30 steps, as for the others.
class TpuBatchRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override;
  int64_t held_ = 0;
};

// bfio before levels: requests wait in one pool for a slot, go where the fewest tokens are (a prompt token
// that is not computed counts as 16), and no rank computes more than the mean rank has to.
class EqualChunksRule final : public ServeRule {
 public:
  explicit EqualChunksRule(int64_t budget) : budget_(budget) {}
  void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) override;

 private:
  const int64_t budget_;
};

// bfio: router/core/prefill.
class BfIoRule final : public ServeRule {
 public:
  void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) override;
};

// bfio in front of engines such as vLLM: bfio decides when which rank gets a prompt, and the engine fills its
// budget with it.
class BfIoReleaseRule final : public ServeRule {
 public:
  explicit BfIoReleaseRule(int64_t budget) : budget_(budget) {}
  void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) override;

 private:
  const int64_t budget_;
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_SERVE_ENGINE_RULES_H_
