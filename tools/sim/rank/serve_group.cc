#include "tools/sim/rank/serve_group.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/cost/prompt_work.h"

namespace bfio::sim {
namespace {

// Random stream of the noise, derived from the run's seed; arrivals have their own.
constexpr uint64_t kNoiseStream = 1;

int64_t BlocksOf(int64_t tokens) {
  return (tokens + kEngineBlockTokens - 1) / kEngineBlockTokens;
}

}  // namespace

void ServeStep::Clear() {
  seconds = 0;
  tokens = 0;
  for (std::vector<double>* of : {&rank_s, &decode_s}) of->clear();
  for (std::vector<BatchLoad>* of : {&loads, &decode_loads}) of->clear();
  for (auto* of : {&first_tokens, &ended}) of->clear();
  busy.clear();
  resident_tokens.clear();
  gaps.clear();
}

ServeGroup::ServeGroup(const Options& options, std::vector<ServeRequest>* requests)
    : slots_(options.slots),
      cost_(options.cost),
      barrier_(options.barrier),
      jitter_(options.jitter),
      tokens_per_step_(options.tokens_per_step),
      rng_(Rng(options.seed).Fork(kNoiseStream)),
      requests_(requests),
      known_(options.cost.batch),
      ranks_(static_cast<size_t>(options.ranks)),
      hidden_(static_cast<size_t>(options.ranks)),
      steps_(static_cast<size_t>(steppers())) {
  for (Hidden& hidden : hidden_) {
    hidden.due.resize(static_cast<size_t>(options.longest_output) + 1);
    if (options.kv_tokens > 0) hidden.pool.emplace(options.kv_tokens / kEngineBlockTokens, options.caches);
  }
}

void ServeGroup::Bind(ServeRequestIndex request, int32_t rank) {
  const int64_t tokens = (*requests_)[request].prompt;
  ranks_[rank].prompts.push_back({request, tokens});
  ranks_[rank].prompt_tokens += tokens;
  ranks_[rank].bound_tokens += tokens;
  ++active_;
}

bool ServeGroup::HasWork(int32_t stepper) const {
  const auto [first, end] = RanksOf(stepper);
  return std::any_of(ranks_.begin() + first, ranks_.begin() + end,
                     [](const ServeRank& rank) { return !rank.idle(); });
}

int64_t ServeGroup::Through(int64_t steps) const {
  return static_cast<int64_t>(std::floor(static_cast<double>(steps) * tokens_per_step_ + 1e-6));
}

int64_t ServeGroup::StepsOf(int64_t tokens) const {
  auto steps = static_cast<int64_t>(std::floor(static_cast<double>(tokens) / tokens_per_step_));
  while (Through(steps) < tokens) ++steps;
  return steps;
}

// --- a step ---

double ServeGroup::Begin(int32_t stepper, const std::vector<RankOrder>& orders) {
  ServeStep& step = steps_[stepper];
  step.Clear();
  const auto [first, end] = RanksOf(stepper);
  for (int32_t g = first; g < end; ++g) {
    ServeRank& rank = ranks_[g];
    const RankOrder& order = orders[static_cast<size_t>(g - first)];
    hidden_[g].decodes_run = order.decodes;
    step.busy.push_back(!rank.idle());
    int64_t most = order.prompt_tokens;
    if (std::isfinite(order.level_s)) most = std::min(most, PromptTokensWithin(g, order.level_s));
    const bool preempted = order.decodes && hidden_[g].pool && ExtendDecodes(g);
    BatchLoad& decodes = step.decode_loads.emplace_back();
    decodes.tokens = rank.decodes * static_cast<int64_t>(std::ceil(tokens_per_step_));
    decodes.decode_context = static_cast<double>(rank.decode_context);
    step.loads.push_back(order.decodes ? decodes : BatchLoad());
    ComputePrompts(g, most, !preempted, step.loads.back());
  }
  Time(step);
  return step.seconds;
}

int64_t ServeGroup::PromptTokensWithin(int32_t g, double level_s) const {
  const ServeRank& rank = ranks_[g];
  std::vector<PromptLeft> prompts;
  for (size_t i = 0; i < rank.prompts.size(); ++i) {
    const BoundPrompt& prompt = rank.prompts[i];
    int64_t cached = 0;
    if (hidden_[g].pool && std::cmp_greater_equal(i, rank.begun)) {
      const size_t blocks = Match(*hidden_[g].pool, (*requests_)[prompt.request], prompt.left).size();
      cached = static_cast<int64_t>(blocks) * kEngineBlockTokens;
    }
    prompts.push_back({prompt.left - cached, prompt.done + cached});
  }
  return TokensWithin({known_, rank.decodes, static_cast<double>(rank.decode_context), prompts}, level_s);
}

void ServeGroup::ComputePrompts(int32_t g, int64_t most, bool begin, BatchLoad& load) {
  ServeRank& rank = ranks_[g];
  Hidden& hidden = hidden_[g];
  for (size_t i = 0; i < rank.prompts.size() && most > 0; ++i) {
    BoundPrompt& prompt = rank.prompts[i];
    if (std::cmp_equal(i, rank.begun)) {
      if (!begin || rank.running() >= slots_ || !TakeCached(g, prompt)) break;
      prompt.began = ++hidden.began;
      ++rank.begun;
    }
    const int64_t chunk = std::min(most, prompt.left);
    if (!Extend(g, prompt.request, prompt.done, prompt.done + chunk, prompt.blocks)) {
      // Only the last of those that have begun is incomplete.
      Preempt(g);
      break;
    }
    load.AddPrefill(chunk, prompt.done);
    rank.prompt_tokens -= chunk;
    prompt.left -= chunk;
    prompt.done += chunk;
    most -= chunk;
    if (prompt.left == 0) ++hidden.prefilled;
  }
}

void ServeGroup::Time(ServeStep& step) {
  const StepMode mode = cost_.terms.ModeOf(step.loads), decode_mode = cost_.terms.ModeOf(step.decode_loads);
  for (size_t i = 0; i < step.loads.size(); ++i) {
    const double noise = Noise();
    step.rank_s.push_back(cost_.RankSeconds(step.loads[i], mode) * noise);
    step.decode_s.push_back(cost_.RankSeconds(step.decode_loads[i], decode_mode) * noise);
    step.seconds = std::max(step.seconds, step.rank_s.back());
  }
}

double ServeGroup::Noise() {
  return jitter_ > 0 ? std::exp(jitter_ * rng_.Normal() - jitter_ * jitter_ / 2) : 1;
}

const ServeStep& ServeGroup::End(int32_t stepper, double now_s) {
  std::swap(ended_, steps_[stepper]);
  const auto [first, end] = RanksOf(stepper);
  for (int32_t g = first; g < end; ++g) {
    ended_.resident_tokens.push_back(ranks_[g].resident_tokens());
    if (hidden_[g].decodes_run) EndDecodes(g, now_s, ended_);
    GiveFirstTokens(g, now_s, ended_);
  }
  return ended_;
}

void ServeGroup::EndDecodes(int32_t g, double end_s, ServeStep& step) {
  ServeRank& rank = ranks_[g];
  Hidden& hidden = hidden_[g];
  if (rank.decodes == 0) return;
  for (const auto& [since_s, count] : hidden.since) step.gaps.emplace_back(end_s - since_s, count);
  std::vector<Decode>& due = DueIn(g, hidden.decode_steps);
  const int64_t before = Through(hidden.decode_steps), after = Through(++hidden.decode_steps);
  step.tokens += rank.decodes * (after - before);
  rank.decode_context += rank.decodes * (after - before);
  for (Decode& decode : due) {
    const ServeRequest& request = (*requests_)[decode.request];
    --rank.decodes;
    rank.decode_context -= decode.base + after;
    step.tokens -= decode.base + after - request.prompt - request.output;
    if (hidden.pool) {
      const auto held = static_cast<int64_t>(decode.blocks.size()) * kEngineBlockTokens;
      Extend(g, decode.request, held - 1, request.prompt + request.output - 1, decode.blocks);
      Release(g, decode.blocks);
    }
    EndRequest(g, decode.request, end_s, step);
  }
  due.clear();
  hidden.since.assign(1, {end_s, rank.decodes});
}

void ServeGroup::GiveFirstTokens(int32_t g, double end_s, ServeStep& step) {
  ServeRank& rank = ranks_[g];
  Hidden& hidden = hidden_[g];
  int64_t joined = 0;
  for (; hidden.prefilled > 0; --hidden.prefilled) {
    BoundPrompt prompt = std::move(rank.prompts.front());
    rank.prompts.pop_front();
    rank.bound_tokens -= prompt.done;
    --rank.begun;
    ++step.tokens;
    ServeRequest& request = (*requests_)[prompt.request];
    if (prompt.generated == 0) {
      request.first_token_s = end_s;
      step.first_tokens.emplace_back(prompt.request, g);
    }
    const int64_t generated = prompt.generated + 1;
    if (generated >= request.output) {
      Release(g, prompt.blocks);
      EndRequest(g, prompt.request, end_s, step);
      continue;
    }
    ++joined;
    ++rank.decodes;
    rank.decode_context += request.prompt + generated;
    const int64_t through = Through(hidden.decode_steps);
    Schedule(g, {prompt.request, prompt.began, request.prompt + generated - through,
                 StepsOf(through + request.output - generated) - 1, std::move(prompt.blocks)});
  }
  if (joined > 0) hidden.since.emplace_back(end_s, joined);
}

void ServeGroup::EndRequest(int32_t g, ServeRequestIndex index, double end_s, ServeStep& step) {
  (*requests_)[index].end_s = end_s;
  step.ended.emplace_back(index, g);
  --active_;
}

// --- KV memory ---

// The KV of a token is computed in the step that generates the next one.
void ServeGroup::Schedule(int32_t g, Decode decode) {
  int64_t step = decode.last;
  if (hidden_[g].pool) {
    const auto held = static_cast<int64_t>(decode.blocks.size()) * kEngineBlockTokens;
    step = std::clamp(StepsOf(held + 2 - decode.base) - 1, hidden_[g].decode_steps, step);
  }
  DueIn(g, step).push_back(std::move(decode));
}

bool ServeGroup::ExtendDecodes(int32_t g) {
  const int64_t now = hidden_[g].decode_steps, before = preemptions_;
  std::vector<Decode>& due = DueIn(g, now);
  // In this order memory is allocated and, at the end of the step, released.
  std::sort(due.begin(), due.end(), [](const Decode& a, const Decode& b) { return a.began < b.began; });
  for (size_t i = 0; i < due.size();) {
    Decode& decode = due[i];
    const ServeRequest& request = (*requests_)[decode.request];
    const int64_t began = decode.began, held = std::ssize(decode.blocks) * kEngineBlockTokens,
                  tokens = std::min(decode.base + Through(now + 1), request.prompt + request.output) - 1;
    bool gone = false;
    while (!gone && !Extend(g, decode.request, held - 1, tokens, decode.blocks)) gone = Preempt(g) == began;
    if (gone) break;
    if (decode.last == now) {
      ++i;
      continue;
    }
    Decode later = std::move(decode);
    due.erase(due.begin() + static_cast<std::ptrdiff_t>(i));
    Schedule(g, std::move(later));
  }
  return preemptions_ > before;
}

std::vector<BlockPool::Block> ServeGroup::Match(const BlockPool& pool, const ServeRequest& request,
                                                int64_t tokens) const {
  std::vector<BlockPool::Block> found;
  if (!pool.cache()) return found;
  // At least the last token must be computed.
  const auto most = static_cast<size_t>((tokens - 1) / kEngineBlockTokens);
  for (size_t i = 0; i < most; ++i) {
    const auto block = pool.Find(request.blocks[i]);
    if (!block) break;
    found.push_back(*block);
  }
  return found;
}

bool ServeGroup::TakeCached(int32_t g, BoundPrompt& prompt) {
  ServeRequest& request = (*requests_)[prompt.request];
  if (hidden_[g].pool) {
    BlockPool& pool = *hidden_[g].pool;
    prompt.blocks = Match(pool, request, prompt.left);
    const auto in_use = std::count_if(prompt.blocks.begin(), prompt.blocks.end(),
                                      [&](BlockPool::Block block) { return pool.in_use(block); });
    if (BlocksOf(prompt.left) - in_use > pool.free_blocks()) {
      prompt.blocks.clear();
      return false;
    }
    for (const BlockPool::Block block : prompt.blocks) pool.Share(block);
    prompt.done = std::ssize(prompt.blocks) * kEngineBlockTokens;
    prompt.left -= prompt.done;
    ranks_[g].prompt_tokens -= prompt.done;
  }
  if (request.cached < 0) request.cached = std::min(prompt.done, request.prompt - 1);
  return true;
}

bool ServeGroup::Extend(int32_t g, ServeRequestIndex index, int64_t from, int64_t tokens,
                        std::vector<BlockPool::Block>& blocks) {
  if (!hidden_[g].pool) return true;
  BlockPool& pool = *hidden_[g].pool;
  const int64_t more = BlocksOf(tokens) - std::ssize(blocks);
  if (more > pool.free_blocks()) return false;
  for (int64_t i = 0; i < more; ++i) blocks.push_back(pool.Allocate());
  if (!pool.cache()) return true;
  // Blocks of prompts are named before the step ends, so that prompts that begin in the same step share them.
  const std::vector<uint64_t>& names = (*requests_)[index].blocks;
  const auto full = static_cast<size_t>(tokens / kEngineBlockTokens);
  for (auto i = static_cast<size_t>(from / kEngineBlockTokens); i < full; ++i) pool.Name(blocks[i], names[i]);
  return true;
}

void ServeGroup::Release(int32_t g, std::vector<BlockPool::Block>& blocks) {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) hidden_[g].pool->Release(*block);
  blocks.clear();
}

int64_t ServeGroup::Preempt(int32_t g) {
  ServeRank& rank = ranks_[g];
  Hidden& hidden = hidden_[g];
  ++preemptions_;
  // Prompts begin after the requests that decode already.
  if (rank.begun > 0) {
    BoundPrompt& prompt = rank.prompts[static_cast<size_t>(--rank.begun)];
    Release(g, prompt.blocks);
    rank.prompt_tokens += prompt.done;
    prompt.left += std::exchange(prompt.done, 0);
    return prompt.began;
  }
  std::vector<Decode>* of = nullptr;
  size_t youngest = 0;
  // The next block of every decode is due within kEngineBlockTokens steps.
  for (int64_t step = 0; step <= kEngineBlockTokens && std::cmp_less(step, hidden.due.size()); ++step) {
    std::vector<Decode>& due = DueIn(g, hidden.decode_steps + step);
    for (size_t i = 0; i < due.size(); ++i) {
      if (of != nullptr && due[i].began < (*of)[youngest].began) continue;
      of = &due;
      youngest = i;
    }
  }
  Decode decode = std::move((*of)[youngest]);
  of->erase(of->begin() + static_cast<std::ptrdiff_t>(youngest));
  Release(g, decode.blocks);
  const int64_t tokens = decode.base + Through(hidden.decode_steps);
  --rank.decodes;
  rank.decode_context -= tokens;
  if (!hidden.since.empty() && hidden.since.back().second > 0) --hidden.since.back().second;
  rank.prompts.push_front({decode.request, tokens, 0, tokens - (*requests_)[decode.request].prompt});
  rank.prompt_tokens += tokens;
  rank.bound_tokens += tokens;
  return decode.began;
}

int64_t ServeGroup::Cached(int32_t rank, const ServeRequest& request) const {
  if (!hidden_[rank].pool) return 0;
  return std::ssize(Match(*hidden_[rank].pool, request, request.prompt)) * kEngineBlockTokens;
}

int64_t ServeGroup::UsedTokens(int32_t rank) const {
  const std::optional<BlockPool>& pool = hidden_[rank].pool;
  return pool ? (pool->size() - pool->free_blocks()) * kEngineBlockTokens : 0;
}

}  // namespace bfio::sim
