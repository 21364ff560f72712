// The rules by which today's engines place prompts and limit the prompt tokens of a step.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cost/prompt_work.h"
#include "tools/sim/serve/serve_rule.h"

namespace bfio::sim {
namespace {

constexpr auto kPositive = [](int64_t number) { return number > 0; };

bool SomethingDecodes(const ServeView& view) {
  return std::ranges::any_of(view.ranks, kPositive, &ServeRank::decodes);
}
bool AllDecode(const ServeView& view) {
  return std::ranges::all_of(view.ranks, kPositive, &ServeRank::decodes);
}

// Binds a request to a rank on arrival: to the one with the smallest sum of running requests and weighted
// queued requests. A rank's decodes come first; its prompts fill the rest of the budget. With vLLM's weight
// of 4 it is vLLM's rule.
class InstantRule : public ServeRule {
 public:
  explicit InstantRule(int64_t budget, int64_t weight_of_queued = 4)
      : budget_(budget), weight_of_queued_(weight_of_queued) {}

  void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) final {
    std::vector<int64_t> tokens;
    for (const ServeRank& rank : view.ranks) tokens.push_back(rank.prompt_tokens);
    Place(view, pool, tokens, plan);
    Meter(view, tokens, plan);
  }

 protected:
  // Binds requests of the pool, and adds their prompts to `tokens` (by rank: bound, not yet computed).
  virtual void Place(const ServeView& view, std::deque<ServeRequestIndex>& pool, std::vector<int64_t>& tokens,
                     ServePlan& plan) {
    std::vector<int64_t> weights;
    for (const ServeRank& rank : view.ranks) {
      weights.push_back(rank.running() + weight_of_queued_ * rank.queued());
    }
    for (const ServeRequestIndex index : pool) {
      const auto least = std::min_element(weights.begin(), weights.end()) - weights.begin();
      plan.bindings.push_back({index, static_cast<int32_t>(least)});
      weights[least] += weight_of_queued_;
      tokens[least] += view.requests[index].prompt;
    }
    pool.clear();
  }
  // Sets the ranks' prompt tokens; without a call of Release they compute none.
  virtual void Meter(const ServeView& view, const std::vector<int64_t>& /*tokens*/, ServePlan& plan) {
    Release(view, plan);
  }

  int64_t budget() const { return budget_; }
  int64_t PromptCapacity(const ServeRank& rank) const { return std::max<int64_t>(0, budget_ - rank.decodes); }
  void Release(const ServeView& view, ServePlan& plan) const {
    for (size_t g = 0; g < view.ranks.size(); ++g)
      plan.orders[g].prompt_tokens = PromptCapacity(view.ranks[g]);
  }
  // Number of prompts bound to rank g that have no slot yet.
  static int64_t Queued(const ServeView& view, const ServePlan& plan, size_t g) {
    return view.ranks[g].queued() +
           std::count_if(plan.bindings.begin(), plan.bindings.end(),
                         [g](const ServePlan::Binding& binding) { return std::cmp_equal(binding.rank, g); });
  }
  // Number of them that begin when it computes up to `most` prompt tokens.
  static int64_t Begins(const ServeView& view, const ServePlan& plan, size_t g, int64_t most) {
    const ServeRank& rank = view.ranks[g];
    int64_t begun = 0;
    const auto compute = [&](int64_t tokens, bool queued) {
      if (most <= 0 || (queued && rank.running() + begun >= view.slots)) return most = 0;
      begun += queued ? 1 : 0;
      return most -= std::min(most, tokens);
    };
    for (size_t i = 0; i < rank.prompts.size(); ++i)
      compute(rank.prompts[i].left, std::cmp_greater_equal(i, rank.begun));
    for (const ServePlan::Binding& binding : plan.bindings) {
      if (std::cmp_equal(binding.rank, g)) compute(view.requests[binding.request].prompt, true);
    }
    return begun;
  }

 private:
  const int64_t budget_, weight_of_queued_;
};

// vLLM's prefill_schedule_interval, 2 here, as merged (read in 0.33: v1/engine/core.py, v1/core/sched):
// prompts only in every second step, the same on all ranks. A rank ignores it while none of its requests
// decodes, and after a step in which it computed prompts and left some waiting.
class VllmCadenceRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  static constexpr int64_t kCadence = 2;

  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override {
    bound_.resize(tokens.size());
    for (size_t g = 0; g < tokens.size(); ++g) {
      if (view.step % kCadence != 0 && !bound_[g] && view.ranks[g].decodes > 0) continue;
      plan.orders[g].prompt_tokens = PromptCapacity(view.ranks[g]);
      bound_[g] = Queued(view, plan, g) > Begins(view, plan, g, plan.orders[g].prompt_tokens);
    }
  }

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
  explicit SglangDelayerRule(int64_t budget) : InstantRule(budget, 1) {}

 private:
  // With max_delay_passes = 30 the thirtieth pass is not delayed.
  static constexpr int64_t kDelays = 29;
  static constexpr size_t kAttempts = 16;

  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override {
    attempts_.resize(tokens.size());
    std::vector<int64_t> begun, queued;
    int64_t largest = 0, free = view.slots;
    for (size_t g = 0; g < tokens.size(); ++g) {
      const ServeRank& rank = view.ranks[g];
      begun.push_back(0);
      for (int64_t i = 0; i < rank.begun; ++i) begun[g] += rank.prompts[static_cast<size_t>(i)].left;
      // A new request needs a slot; a rank without a free slot votes that it has none.
      queued.push_back(rank.running() < view.slots ? tokens[g] - begun[g] : 0);
      free = std::min(free, view.slots - rank.running());
      for (const int64_t prompts : attempts_[g]) largest = std::max(largest, prompts);
    }
    const bool all = std::ranges::all_of(queued, kPositive);
    bool wants = !all && std::ranges::any_of(queued, kPositive);
    if (all && free < largest) wants = !std::exchange(first_, false);
    const bool delay = wants && SomethingDecodes(view) && delayed_ < kDelays;
    delayed_ = delay ? delayed_ + 1 : 0;
    for (size_t g = 0; g < tokens.size(); ++g) {
      const int64_t most = std::min(budget(), begun[g] + (delay ? 0 : queued[g]));
      if (most > 0) plan.orders[g] = {most, false};
      if (queued[g] == 0) continue;
      const int64_t could = std::min(Queued(view, plan, g), view.slots - view.ranks[g].running());
      attempts_[g].push_back(delay ? could : std::max<int64_t>(1, Begins(view, plan, g, most)));
      if (attempts_[g].size() > kAttempts) attempts_[g].pop_front();
    }
  }

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
  static constexpr double kFill = 0.7;
  static constexpr int64_t kTicks = 30, kTicksOfABegunPrompt = 8, kStallTicks = 3;

  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override {
    int64_t pending = 0, ready = 0;
    bool begun = false;
    for (size_t g = 0; g < tokens.size(); ++g) {
      const ServeRank& rank = view.ranks[g];
      begun |= rank.begun > 0;
      if (tokens[g] == 0 || (rank.begun == 0 && rank.running() >= view.slots)) continue;
      ++ready;
      pending += std::min(tokens[g], budget());
    }
    if (Holds(view, ready, pending, begun)) {
      ++held_;
      return;
    }
    held_ = stalled_ = 0;
    pending_before_ = -1;
    Release(view, plan);
  }
  // `ready`: ranks that could compute prompts. `pending`: their prompt tokens, at most a budget per rank.
  bool Holds(const ServeView& view, int64_t ready, int64_t pending, bool begun) {
    if (ready == 0 || !SomethingDecodes(view) || held_ >= kTicks) return false;
    if (begun && held_ >= kTicksOfABegunPrompt) return false;
    if (ready < std::ssize(view.ranks)) return true;
    if (static_cast<double>(pending) >= kFill * static_cast<double>(ready * budget())) return false;
    stalled_ = pending <= pending_before_ ? stalled_ + 1 : 0;
    pending_before_ = pending;
    return stalled_ < kStallTicks;
  }

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
  static constexpr int64_t kTimeout = 50, kBatchingWait = 10;

  void Place(const ServeView& view, std::deque<ServeRequestIndex>& pool, std::vector<int64_t>& tokens,
             ServePlan& plan) override {
    struct Active {
      int64_t tokens = 0, requests = 0;
    };
    std::vector<Active> ranks;
    int64_t requests = 0, most = 0;
    for (const ServeRank& rank : view.ranks) {
      ranks.push_back({rank.resident_tokens(), rank.decodes + std::ssize(rank.prompts)});
      requests += ranks.back().requests;
      most = std::max(most, ranks.back().requests);
    }
    const int64_t slots = view.slots * std::ssize(ranks);
    const int64_t taken = std::clamp<int64_t>(slots - requests, 0, std::ssize(pool));
    std::vector<ServeRequestIndex> order(pool.begin(), pool.begin() + taken);
    pool.erase(pool.begin(), pool.begin() + taken);
    std::stable_sort(order.begin(), order.end(), [&](ServeRequestIndex a, ServeRequestIndex b) {
      return view.requests[a].prompt > view.requests[b].prompt;
    });
    const int64_t cap = std::max(most, (requests + taken + std::ssize(ranks) - 1) / std::ssize(ranks));
    for (const ServeRequestIndex index : order) {
      const auto least = std::min_element(ranks.begin(), ranks.end(), [&](const Active& a, const Active& b) {
        const bool full_a = a.requests >= cap, full_b = b.requests >= cap;
        return std::tie(full_a, a.tokens, a.requests) < std::tie(full_b, b.tokens, b.requests);
      });
      const auto g = least - ranks.begin();
      plan.bindings.push_back({index, static_cast<int32_t>(g)});
      least->tokens += view.requests[index].prompt;
      ++least->requests;
      tokens[g] += view.requests[index].prompt;
    }
  }

  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override {
    const bool slots = std::ranges::all_of(
        view.ranks, [&](int64_t decodes) { return decodes < view.slots; }, &ServeRank::decodes);
    // Steps in which no rank has a prompt also count towards the timeout.
    if (slots && std::ranges::all_of(tokens, kPositive)) {
      waited_ = 0;
      if (AllDecode(view) && batched_ < kBatchingWait) {
        ++batched_;
        return;
      }
      if (AllDecode(view)) batched_ = 0;
    } else {
      if (++waited_ < kTimeout && AllDecode(view)) return;
      waited_ = 0;
    }
    Release(view, plan);
  }

  int64_t waited_ = 0, batched_ = 0;
};

// tpu-inference (#2577): prompts are delayed until every rank has one, unless no request decodes. The source
// states no bound; here the delay is at most 30 steps, as for the others.
class TpuBatchRule final : public InstantRule {
 public:
  using InstantRule::InstantRule;

 private:
  static constexpr int64_t kTicks = 30;

  void Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) override {
    const bool any = std::ranges::any_of(tokens, kPositive), all = std::ranges::all_of(tokens, kPositive);
    const bool holds = any && !all && SomethingDecodes(view) && held_ < kTicks;
    held_ = holds ? held_ + 1 : 0;
    if (any && !holds) Release(view, plan);
  }

  int64_t held_ = 0;
};

// bfio's rule before the step time level: requests wait in one pool for a slot and go to the rank with the
// fewest tokens (an uncomputed prompt token counts 16). No rank computes more than the mean pending tokens.
class EqualChunksRule final : public ServeRule {
 public:
  explicit EqualChunksRule(int64_t budget) : budget_(budget) {}

  void Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) override {
    struct Weighed {
      int64_t free = 0, load = 0, pending = 0;
      int64_t weight() const { return load + kPrefillWeight * pending; }
    };
    std::vector<Weighed> ranks;
    for (const ServeRank& rank : view.ranks) {
      ranks.push_back(
          {view.slots - rank.decodes - std::ssize(rank.prompts), rank.resident_tokens(), rank.prompt_tokens});
    }
    for (; !pool.empty(); pool.pop_front()) {
      const auto best = std::min_element(ranks.begin(), ranks.end(), [](const Weighed& a, const Weighed& b) {
        return a.free > 0 && (b.free <= 0 || a.weight() < b.weight());
      });
      if (best->free <= 0) break;
      const int64_t prompt = view.requests[pool.front()].prompt;
      plan.bindings.push_back({pool.front(), static_cast<int32_t>(best - ranks.begin())});
      --best->free;
      best->load += prompt;
      best->pending += prompt;
    }
    // No rank computes more than the mean of the pending tokens, so that none takes longer than the others.
    const int64_t all = std::accumulate(ranks.begin(), ranks.end(), int64_t{0},
                                        [](int64_t sum, const Weighed& rank) { return sum + rank.pending; });
    const auto count = static_cast<int64_t>(ranks.size());
    const int64_t piece = all == 0 ? 0 : std::max(kLeastChunk, (all + count - 1) / count);
    for (size_t g = 0; g < ranks.size(); ++g) {
      const int64_t capacity = std::max(kMinPrefillRows, budget_ - view.ranks[g].decodes);
      plan.orders[g].prompt_tokens = std::min(piece, capacity);
    }
  }

 private:
  static constexpr int64_t kPrefillWeight = 16;
  // Smaller chunks save no time, because a step reads the same weights for 1 row as for 64.
  static constexpr int64_t kLeastChunk = 64;

  const int64_t budget_;
};

template <class Rule>
std::unique_ptr<ServeRule> Make(int64_t budget) {
  return std::make_unique<Rule>(budget);
}

}  // namespace

const std::vector<ServeRuleInfo>& ServeRules() {
  static const std::vector<ServeRuleInfo>* const rules = new std::vector<ServeRuleInfo>{
      {"bf_io",
       "requests wait in one pool until a rank has no prompt; all ranks compute prompt tokens up to a common "
       "step time",
       nullptr},
      {"bf_io_release",
       "requests wait in one pool and are released several at a time; each engine fills its token budget "
       "with "
       "prompts",
       nullptr},
      {"equal_chunks",
       "requests wait in one pool; a rank computes at most the mean of the ranks' pending prompt tokens per "
       "step",
       Make<EqualChunksRule>},
      {"vllm",
       "to the rank with the fewest requests (a waiting one counts four times); decodes first, then prompts "
       "up to the token budget",
       Make<InstantRule>},
      {"vllm_cadence", "as vllm, but prompts only in every second step until the ranks are saturated",
       Make<VllmCadenceRule>},
      {"sglang_delayer",
       "a step has either prompts or decodes; prompts begin when all ranks have some, in the 30th step at "
       "the "
       "latest",
       Make<SglangDelayerRule>},
      {"atom_coalescer",
       "prompts begin when all ranks have some that fill 0.7 of a full step, after at most 30 steps",
       Make<AtomCoalescerRule>},
      {"trtllm_adp", "prompts begin 10 steps after every rank has one, otherwise in every 50th step",
       Make<TrtllmAdpRule>},
      {"tpu_batch", "prompts begin when every rank has one, after at most 30 steps", Make<TpuBatchRule>},
  };
  return *rules;
}

absl::StatusOr<std::unique_ptr<ServeRule>> MakeServeRule(absl::string_view name, int64_t budget) {
  std::string names;
  for (const ServeRuleInfo& rule : ServeRules()) {
    if (rule.name == name) return rule.ours() ? nullptr : rule.make(budget);
    absl::StrAppend(&names, names.empty() ? "" : ", ", rule.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown rule '", name, "'; choose one of ", names));
}

}  // namespace bfio::sim
