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
  prefills = false;
  tokens = 0;
  for (std::vector<double>* of : {&rank_s, &decode_s}) of->clear();
  for (std::vector<BatchLoad>* of : {&loads, &decode_loads}) of->clear();
  for (auto* of : {&began, &first_tokens, &ended, &returned}) of->clear();
  busy.clear();
  resident_tokens.clear();
  gaps.clear();
}

ServeGroup::ServeGroup(const Options& options, std::vector<ServeRequest>* requests)
    : decode_ranks_(options.ranks),
      transfer_s_(options.transfer_s),
      transfer_s_per_token_(options.transfer_s_per_token),
      slots_(options.slots),
      cost_(options.cost),
      barrier_(options.barrier),
      jitter_(options.jitter),
      decode_rows_(options.decode_rows),
      return_above_(options.returns_requests ? options.kv_tokens : 0),
      time_(options.time),
      drift_(options.drift),
      rng_(Rng(options.seed).Fork(kNoiseStream)),
      requests_(requests),
      known_(options.cost.batch),
      ranks_(static_cast<size_t>(options.ranks + options.prefill_ranks)),
      hidden_(ranks_.size()),
      steps_(static_cast<size_t>(steppers())),
      in_step_(steps_.size()) {
  for (size_t g = 0; g < hidden_.size(); ++g) {
    Hidden& hidden = hidden_[g];
    const bool prefills = std::cmp_greater_equal(g, decode_ranks_);
    hidden.due.resize(prefills ? 1 : static_cast<size_t>(options.longest_output) + 1);
    if (options.kv_tokens > 0 && return_above_ == 0 && !prefills)
      hidden.pool.emplace(options.kv_tokens / kEngineBlockTokens, options.caches);
  }
}

void ServeGroup::Bind(ServeRequestIndex index, int32_t rank) {
  const ServeRequest& request = (*requests_)[index];
  ranks_[rank].bound_tokens += request.prompt;
  ++active_;
  if (request.computed == 0) return Enqueue(index, rank);
  ranks_[rank].in_transfer.push_back(index);
  const double seconds = transfer_s_ + transfer_s_per_token_ * static_cast<double>(request.computed);
  transfers_.push_back({now_s_ + seconds, index, rank});
}

void ServeGroup::Enqueue(ServeRequestIndex index, int32_t rank) {
  const ServeRequest& request = (*requests_)[index];
  ranks_[rank].prompts.push_back({index, request.prompt - request.computed, request.computed});
  ranks_[rank].prompt_tokens += request.prompt - request.computed;
}

void ServeGroup::Advance(double now_s) {
  now_s_ = now_s;
  std::erase_if(transfers_, [&](const Transfer& transfer) {
    if (transfer.end_s > now_s) return false;
    std::erase(ranks_[transfer.rank].in_transfer, transfer.request);
    Enqueue(transfer.request, transfer.rank);
    return true;
  });
}

double ServeGroup::NextTransfer() const {
  double next_s = std::numeric_limits<double>::infinity();
  for (const Transfer& transfer : transfers_) next_s = std::min(next_s, transfer.end_s);
  return next_s;
}

bool ServeGroup::HasWork(int32_t stepper) const {
  const auto [first, end] = RanksOf(stepper);
  return std::any_of(ranks_.begin() + first, ranks_.begin() + end,
                     [](const ServeRank& rank) { return !rank.idle(); });
}

// --- a step ---

double ServeGroup::Begin(int32_t stepper, const std::vector<RankOrder>& orders) {
  ServeStep& step = steps_[stepper];
  step.Clear();
  const auto [first, end] = RanksOf(stepper);
  step.prefills = first >= decode_ranks_;
  for (int32_t g = first; g < end; ++g) {
    ServeRank& rank = ranks_[g];
    const RankOrder& order = orders[static_cast<size_t>(g - first)];
    hidden_[g].decodes_run = order.decodes;
    step.busy.push_back(!rank.idle());
    int64_t most = order.prompt_tokens;
    if (std::isfinite(order.level_s)) most = std::min(most, PromptTokensWithin(g, order.level_s));
    if (return_above_ > 0) ReturnOverflow(g, step);
    const bool preempted = order.decodes && hidden_[g].pool && ExtendDecodes(g);
    BatchLoad& decodes = step.decode_loads.emplace_back();
    decodes.tokens = rank.decodes * decode_rows_;
    decodes.decode_context = static_cast<double>(rank.decode_context);
    step.loads.push_back(order.decodes ? decodes : BatchLoad());
    ComputePrompts(g, most, !preempted, step);
  }
  if (time_) {
    time_(step);
  } else {
    Time(step);
  }
  in_step_[stepper] = true;
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

void ServeGroup::ComputePrompts(int32_t g, int64_t most, bool begin, ServeStep& step) {
  BatchLoad& load = step.loads.back();
  ServeRank& rank = ranks_[g];
  Hidden& hidden = hidden_[g];
  for (size_t i = 0; i < rank.prompts.size() && most > 0; ++i) {
    BoundPrompt& prompt = rank.prompts[i];
    if (std::cmp_equal(i, rank.begun)) {
      if (!begin || rank.running() >= slots_ || !TakeCached(g, prompt)) break;
      prompt.began = ++hidden.began;
      ++rank.begun;
      step.began.emplace_back(prompt.request, g);
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
  in_step_[stepper] = false;
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
  const int64_t before = hidden.decode_steps, after = ++hidden.decode_steps;
  if (rank.decodes == 0) return;
  for (const auto& [since_s, count] : hidden.since) step.gaps.emplace_back(end_s - since_s, count);
  step.tokens += rank.decodes * (drift_.TokensThrough(after) - drift_.TokensThrough(before));
  rank.decode_context += rank.decodes * (drift_.GrowthThrough(after) - drift_.GrowthThrough(before));
  std::vector<Decode>& due = DueIn(g, before);
  for (Decode& decode : due) {
    const ServeRequest& request = (*requests_)[decode.request];
    --rank.decodes;
    rank.decode_context -= decode.context + drift_.GrowthThrough(after);
    step.tokens -= decode.generated + drift_.TokensThrough(after) - request.output;
    if (hidden.pool) {
      const auto held = static_cast<int64_t>(decode.blocks.size()) * kEngineBlockTokens;
      Extend(g, decode.request, held - 1, request.prompt + request.output - 1, decode.blocks);
      Release(g, decode.blocks);
    }
    EndRequest(g, decode.request, end_s, step);
  }
  // Without this, memory would grow with the most requests that were ever due in a step.
  std::vector<Decode>().swap(due);
  hidden.since.assign(1, {end_s, rank.decodes});
}

void ServeGroup::GiveFirstTokens(int32_t g, double end_s, ServeStep& step) {
  ServeRank& rank = ranks_[g];
  Hidden& hidden = hidden_[g];
  // A step with decodes gives a request as many tokens as any other.
  const int64_t after = hidden.decode_steps, before = after - 1;
  const bool one = !hidden.decodes_run;
  const int64_t tokens = one ? 1 : drift_.TokensThrough(after) - drift_.TokensThrough(before),
                growth = one ? 1 : drift_.GrowthThrough(after) - drift_.GrowthThrough(before);
  int64_t joined = 0;
  for (; hidden.prefilled > 0; --hidden.prefilled) {
    BoundPrompt prompt = std::move(rank.prompts.front());
    rank.prompts.pop_front();
    rank.bound_tokens -= prompt.done;
    --rank.begun;
    ServeRequest& request = (*requests_)[prompt.request];
    if (step.prefills) {
      // The rank that decodes it generates the first token.
      request.computed = request.prompt - 1;
      request.handed_over_s = end_s;
      step.returned.emplace_back(prompt.request, g);
      --active_;
      continue;
    }
    step.tokens += std::min(tokens, request.output - prompt.generated);
    if (prompt.generated == 0 && request.made == 0) {
      request.first_token_s = end_s;
      step.first_tokens.emplace_back(prompt.request, g);
    }
    if (prompt.generated + tokens >= request.output) {
      if (hidden.pool) Release(g, prompt.blocks);
      EndRequest(g, prompt.request, end_s, step);
      continue;
    }
    ++joined;
    ++rank.decodes;
    rank.decode_context += prompt.done + growth;
    const int64_t generated = prompt.generated + tokens - drift_.TokensThrough(after);
    Schedule(g, {prompt.request, prompt.began, prompt.done + growth - drift_.GrowthThrough(after), generated,
                 drift_.StepWith(request.output - generated) - 1, std::move(prompt.blocks)});
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
    step = std::clamp(drift_.StepWith(held + 2 - decode.context) - 1, hidden_[g].decode_steps, step);
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
                  tokens = std::min(decode.context + drift_.TokensThrough(now + 1),
                                    request.prompt + request.output) -
                           1;
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
    if (prompt.done == 0) prompt.blocks = Match(pool, request, prompt.left);
    const auto in_use = std::count_if(prompt.blocks.begin(), prompt.blocks.end(),
                                      [&](BlockPool::Block block) { return pool.in_use(block); });
    if (BlocksOf(prompt.done + prompt.left) - in_use > pool.free_blocks()) {
      prompt.blocks.clear();
      return false;
    }
    for (const BlockPool::Block block : prompt.blocks) pool.Share(block);
    const int64_t found = std::ssize(prompt.blocks) * kEngineBlockTokens;
    prompt.done += found;
    prompt.left -= found;
    ranks_[g].prompt_tokens -= found;
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
  // With blocks, every decode is due within kEngineBlockTokens steps.
  const int64_t lists = std::ssize(hidden.due),
                most = hidden.pool ? std::min(lists, kEngineBlockTokens + 1) : lists;
  for (int64_t step = 0; step < most; ++step) {
    std::vector<Decode>& due = DueIn(g, hidden.decode_steps + step);
    for (size_t i = 0; i < due.size(); ++i) {
      if (of != nullptr && due[i].began < (*of)[youngest].began) continue;
      of = &due;
      youngest = i;
    }
  }
  Decode decode = std::move((*of)[youngest]);
  of->erase(of->begin() + static_cast<std::ptrdiff_t>(youngest));
  if (hidden.pool) Release(g, decode.blocks);
  const int64_t tokens = decode.context + drift_.GrowthThrough(hidden.decode_steps);
  --rank.decodes;
  rank.decode_context -= tokens;
  if (!hidden.since.empty() && hidden.since.back().second > 0) --hidden.since.back().second;
  const int64_t generated = decode.generated + drift_.TokensThrough(hidden.decode_steps);
  rank.prompts.push_front({decode.request, tokens, 0, generated});
  rank.prompt_tokens += tokens;
  rank.bound_tokens += tokens;
  return decode.began;
}

void ServeGroup::ReturnOverflow(int32_t g, ServeStep& step) {
  ServeRank& rank = ranks_[g];
  while (rank.resident_tokens() > return_above_) {
    // Those that would begin now are the youngest.
    const bool begins = !rank.prompts.empty();
    if (!begins) Preempt(g);
    const BoundPrompt prompt = std::move(rank.prompts.back());
    rank.prompts.pop_back();
    rank.prompt_tokens -= prompt.left;
    rank.bound_tokens -= prompt.left;
    ServeRequest& request = (*requests_)[prompt.request];
    request.prompt = prompt.left;
    request.output -= prompt.generated;
    request.made += prompt.generated;
    preemptions_ += begins ? 1 : 0;
    --active_;
    step.returned.emplace_back(prompt.request, g);
  }
}

void ServeGroup::ForEachDecode(const std::function<void(ServeRequestIndex, int32_t, int64_t)>& visit) {
  for (int32_t g = 0; g < std::ssize(ranks_); ++g) {
    const int64_t made = drift_.TokensThrough(hidden_[g].decode_steps);
    for (const std::vector<Decode>& due : hidden_[g].due) {
      for (const Decode& decode : due)
        visit(decode.request, g, (*requests_)[decode.request].output - decode.generated - made);
    }
  }
}

int64_t ServeGroup::Cached(int32_t rank, const ServeRequest& request) const {
  if (!hidden_[rank].pool) return 0;
  return std::ssize(Match(*hidden_[rank].pool, request, request.prompt)) * kEngineBlockTokens;
}

int64_t ServeGroup::UsedTokens(int32_t rank) const {
  const std::optional<BlockPool>& pool = hidden_[rank].pool;
  return pool ? (pool->size() - pool->free_blocks()) * kEngineBlockTokens : 0;
}

double ServeGroup::KvUse(int32_t rank) const {
  const std::optional<BlockPool>& pool = hidden_[rank].pool;
  return pool ? 1 - static_cast<double>(pool->free_blocks()) / static_cast<double>(pool->size()) : 0;
}

BlockPool::BlockPool(int64_t blocks, bool cache) : cache_(cache), blocks_(static_cast<size_t>(blocks)) {
  for (int64_t block = 0; block < blocks; ++block)
    blocks_[static_cast<size_t>(block)].at = free_.insert(free_.end(), static_cast<Block>(block));
}

std::optional<BlockPool::Block> BlockPool::Find(uint64_t name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? std::nullopt : std::optional(it->second);
}

void BlockPool::Share(Block block) {
  Entry& entry = blocks_[static_cast<size_t>(block)];
  if (entry.users++ == 0) used_.splice(used_.end(), free_, entry.at);
}

BlockPool::Block BlockPool::Allocate() {
  const Block block = free_.front();
  Entry& entry = blocks_[static_cast<size_t>(block)];
  if (entry.name) by_name_.erase(*entry.name);
  entry.name.reset();
  Share(block);
  return block;
}

void BlockPool::Name(Block block, uint64_t name) {
  if (!cache_ || !by_name_.try_emplace(name, block).second) return;
  blocks_[static_cast<size_t>(block)].name = name;
}

void BlockPool::Release(Block block) {
  Entry& entry = blocks_[static_cast<size_t>(block)];
  if (--entry.users == 0) free_.splice(free_.end(), used_, entry.at);
}

}  // namespace bfio::sim
