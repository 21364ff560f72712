#include "tools/sim/serve/engine_rules.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/cost/prompt_work.h"

namespace bfio::sim {
namespace {

constexpr int64_t kCadence = 2;
// With max_delay_passes = 30 the thirtieth pass is not delayed.
constexpr int64_t kSglangDelays = 29;
constexpr size_t kSglangAttempts = 16;
constexpr double kAtomFill = 0.7;
constexpr int64_t kAtomTicks = 30;
constexpr int64_t kAtomTicksOfABegunPrompt = 8;
constexpr int64_t kAtomStallTicks = 3;
constexpr int64_t kTrtllmTimeout = 50;
constexpr int64_t kTrtllmBatchingWait = 10;
constexpr int64_t kTpuTicks = 30;
// bfio's defaults before the step time level was introduced.
constexpr int64_t kPrefillWeight = 16;
// equal_chunks: smaller chunks save no time, because a step reads the same weights for 1 row as for 64.
constexpr int64_t kLeastChunk = 64;

bool SomethingDecodes(const ServeView& view) {
  return std::any_of(view.ranks.begin(), view.ranks.end(),
                     [](const ServeRank& rank) { return rank.decodes > 0; });
}

bool AllDecode(const ServeView& view) {
  return std::all_of(view.ranks.begin(), view.ranks.end(),
                     [](const ServeRank& rank) { return rank.decodes > 0; });
}

bool Any(const std::vector<int64_t>& tokens) {
  return std::any_of(tokens.begin(), tokens.end(), [](int64_t t) { return t > 0; });
}

bool All(const std::vector<int64_t>& tokens) {
  return std::all_of(tokens.begin(), tokens.end(), [](int64_t t) { return t > 0; });
}

// Uncomputed tokens of the prompts that have begun.
int64_t TokensBegun(const ServeRank& rank) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < rank.begun; ++i) tokens += rank.prompts[static_cast<size_t>(i)].left;
  return tokens;
}

}  // namespace

void InstantRule::Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) {
  std::vector<int64_t> tokens;
  for (const ServeRank& rank : view.ranks) tokens.push_back(rank.prompt_tokens);
  Place(view, pool, tokens, plan);
  Meter(view, tokens, plan);
}

void InstantRule::Place(const ServeView& view, std::deque<ServeRequestIndex>& pool,
                        std::vector<int64_t>& tokens, ServePlan& plan) {
  std::vector<int64_t> weights;
  for (const ServeRank& rank : view.ranks) {
    weights.push_back(rank.running() + WeightOfQueued() * rank.queued());
  }
  for (const ServeRequestIndex index : pool) {
    const auto least = std::min_element(weights.begin(), weights.end()) - weights.begin();
    plan.bindings.push_back({index, static_cast<int32_t>(least)});
    weights[least] += WeightOfQueued();
    tokens[least] += view.requests[index].prompt;
  }
  pool.clear();
}

void InstantRule::Meter(const ServeView& view, const std::vector<int64_t>& /*tokens*/, ServePlan& plan) {
  Release(view, plan);
}

int64_t InstantRule::PromptCapacity(const ServeRank& rank) const {
  return std::max<int64_t>(0, budget_ - rank.decodes);
}

int64_t InstantRule::Begins(const ServeView& view, const ServePlan& plan, size_t g, int64_t most) {
  const ServeRank& rank = view.ranks[g];
  int64_t begun = 0;
  const auto compute = [&](int64_t tokens, bool queued) {
    if (most <= 0 || (queued && rank.running() + begun >= view.slots)) return most = 0;
    begun += queued ? 1 : 0;
    return most -= std::min(most, tokens);
  };
  for (size_t i = 0; i < rank.prompts.size(); ++i) {
    compute(rank.prompts[i].left, std::cmp_greater_equal(i, rank.begun));
  }
  for (const ServePlan::Binding& binding : plan.bindings) {
    if (std::cmp_equal(binding.rank, g)) compute(view.requests[binding.request].prompt, true);
  }
  return begun;
}

int64_t InstantRule::Queued(const ServeView& view, const ServePlan& plan, size_t g) {
  return view.ranks[g].queued() +
         std::count_if(plan.bindings.begin(), plan.bindings.end(),
                       [g](const ServePlan::Binding& binding) { return std::cmp_equal(binding.rank, g); });
}

void InstantRule::Release(const ServeView& view, ServePlan& plan) const {
  for (size_t g = 0; g < view.ranks.size(); ++g) plan.orders[g].prompt_tokens = PromptCapacity(view.ranks[g]);
}

void VllmCadenceRule::Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) {
  bound_.resize(tokens.size());
  for (size_t g = 0; g < tokens.size(); ++g) {
    if (view.step % kCadence != 0 && !bound_[g] && view.ranks[g].decodes > 0) continue;
    plan.orders[g].prompt_tokens = PromptCapacity(view.ranks[g]);
    bound_[g] = Queued(view, plan, g) > Begins(view, plan, g, plan.orders[g].prompt_tokens);
  }
}

void SglangDelayerRule::Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) {
  std::vector<int64_t> begun, queued;
  for (size_t g = 0; g < tokens.size(); ++g) {
    begun.push_back(TokensBegun(view.ranks[g]));
    // A new request needs a slot; a rank without a free slot votes that it has none.
    queued.push_back(view.ranks[g].running() < view.slots ? tokens[g] - begun[g] : 0);
  }
  attempts_.resize(tokens.size());
  int64_t largest = 0, free = view.slots;
  for (size_t g = 0; g < tokens.size(); ++g) {
    free = std::min(free, view.slots - view.ranks[g].running());
    for (const int64_t prompts : attempts_[g]) largest = std::max(largest, prompts);
  }
  bool wants = Any(queued) && !All(queued);
  if (All(queued) && free < largest) wants = !std::exchange(first_, false);
  const bool delay = wants && SomethingDecodes(view) && delayed_ < kSglangDelays;
  delayed_ = delay ? delayed_ + 1 : 0;
  for (size_t g = 0; g < tokens.size(); ++g) {
    // A prompt that has begun always continues.
    const int64_t most = std::min(budget(), begun[g] + (delay ? 0 : queued[g]));
    if (most > 0) plan.orders[g] = {most, false};
    if (queued[g] == 0) continue;
    const int64_t could = std::min(Queued(view, plan, g), view.slots - view.ranks[g].running());
    attempts_[g].push_back(delay ? could : std::max<int64_t>(1, Begins(view, plan, g, most)));
    if (attempts_[g].size() > kSglangAttempts) attempts_[g].pop_front();
  }
}

void AtomCoalescerRule::Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) {
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

bool AtomCoalescerRule::Holds(const ServeView& view, int64_t ready, int64_t pending, bool begun) {
  if (ready == 0 || !SomethingDecodes(view) || held_ >= kAtomTicks) return false;
  if (begun && held_ >= kAtomTicksOfABegunPrompt) return false;
  if (ready < std::ssize(view.ranks)) return true;
  if (static_cast<double>(pending) >= kAtomFill * static_cast<double>(ready * budget())) return false;
  stalled_ = pending <= pending_before_ ? stalled_ + 1 : 0;
  pending_before_ = pending;
  return stalled_ < kAtomStallTicks;
}

void TrtllmAdpRule::Place(const ServeView& view, std::deque<ServeRequestIndex>& pool,
                          std::vector<int64_t>& tokens, ServePlan& plan) {
  struct Active {
    int64_t tokens = 0, requests = 0;
  };
  std::vector<Active> ranks;
  int64_t requests = 0, most = 0;
  for (const ServeRank& rank : view.ranks) {
    Active& active = ranks.emplace_back();
    active.tokens = rank.decode_context;
    for (const BoundPrompt& prompt : rank.prompts) active.tokens += prompt.done + prompt.left;
    active.requests = rank.decodes + static_cast<int64_t>(rank.prompts.size());
    requests += active.requests;
    most = std::max(most, active.requests);
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

void TrtllmAdpRule::Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) {
  const bool slots = std::all_of(view.ranks.begin(), view.ranks.end(),
                                 [&](const ServeRank& rank) { return rank.decodes < view.slots; });
  // Steps in which no rank has a prompt also count towards the timeout.
  if (slots && All(tokens)) {
    waited_ = 0;
    if (AllDecode(view)) {
      if (batched_ < kTrtllmBatchingWait) {
        ++batched_;
        return;
      }
      batched_ = 0;
    }
  } else {
    if (++waited_ < kTrtllmTimeout && AllDecode(view)) return;
    waited_ = 0;
  }
  Release(view, plan);
}

void TpuBatchRule::Meter(const ServeView& view, const std::vector<int64_t>& tokens, ServePlan& plan) {
  if (!Any(tokens)) {
    held_ = 0;
    return;
  }
  if (!All(tokens) && SomethingDecodes(view) && held_ < kTpuTicks) {
    ++held_;
    return;
  }
  held_ = 0;
  Release(view, plan);
}

void EqualChunksRule::Plan(const ServeView& view, std::deque<ServeRequestIndex>& pool, ServePlan& plan) {
  struct Weighed {
    int64_t free = 0, load = 0, pending = 0;
    int64_t weight() const { return load + kPrefillWeight * pending; }
  };
  std::vector<Weighed> ranks;
  for (const ServeRank& rank : view.ranks) {
    const auto prompts = static_cast<int64_t>(rank.prompts.size());
    Weighed weighed{view.slots - rank.decodes - prompts, rank.decode_context, rank.prompt_tokens};
    for (const BoundPrompt& prompt : rank.prompts) weighed.load += prompt.done + prompt.left;
    ranks.push_back(weighed);
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

namespace {

template <class Rule>
std::unique_ptr<ServeRule> Make(int64_t budget) {
  return std::make_unique<Rule>(budget);
}

struct Entry {
  ServeRuleInfo info;
  std::unique_ptr<ServeRule> (*make)(int64_t budget);
};

constexpr Entry kRules[] = {
    {{"bf_io",
      "requests wait in one pool until a rank has no prompt; all ranks compute prompt tokens up to a common "
      "step time",
      true},
     nullptr},
    {{"bf_io_release",
      "requests wait in one pool and are released in waves; each engine fills its token budget with prompts",
      true},
     nullptr},
    {{"equal_chunks",
      "requests wait in one pool; a rank computes at most the mean of the ranks' pending prompt tokens per "
      "step"},
     Make<EqualChunksRule>},
    {{"vllm",
      "to the rank with the fewest requests (a waiting one counts four times); decodes first, then prompts "
      "up to the token budget"},
     Make<VllmRule>},
    {{"vllm_cadence", "as vllm, but prompts only in every second step until the ranks are saturated"},
     Make<VllmCadenceRule>},
    {{"sglang_delayer",
      "a step has either prompts or decodes; prompts begin when all ranks have some, in the 30th step at the "
      "latest"},
     Make<SglangDelayerRule>},
    {{"atom_coalescer",
      "prompts begin when all ranks have some that fill 0.7 of a full step, after at most 30 steps"},
     Make<AtomCoalescerRule>},
    {{"trtllm_adp", "prompts begin 10 steps after every rank has one, otherwise in every 50th step"},
     Make<TrtllmAdpRule>},
    {{"tpu_batch", "prompts begin when every rank has one, after at most 30 steps"}, Make<TpuBatchRule>},
};

}  // namespace

const std::vector<ServeRuleInfo>& ServeRules() {
  static const std::vector<ServeRuleInfo>* const rules = [] {
    auto* const all = new std::vector<ServeRuleInfo>;
    for (const Entry& entry : kRules) all->push_back(entry.info);
    return all;
  }();
  return *rules;
}

absl::StatusOr<std::unique_ptr<ServeRule>> MakeServeRule(absl::string_view name, int64_t budget) {
  std::string names;
  for (const Entry& entry : kRules) {
    if (entry.info.name == name) return entry.make == nullptr ? nullptr : entry.make(budget);
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.info.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown rule '", name, "'; choose one of ", names));
}

}  // namespace bfio::sim
