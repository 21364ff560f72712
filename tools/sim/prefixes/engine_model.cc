#include "tools/sim/prefixes/engine_model.h"

#include <algorithm>
#include <utility>

#include "common/cost/prompt_work.h"

namespace bfio::sim {
namespace {

int64_t BlocksOf(int64_t tokens) {
  return (tokens + kEngineBlockTokens - 1) / kEngineBlockTokens;
}

}  // namespace

EngineModel::EngineModel(const EngineModelOptions& options)
    : options_(options), pool_(options.kv_tokens / kEngineBlockTokens, options.caches) {}

void EngineModel::Submit(const PrefixRequest& request) {
  Entry entry;
  entry.request = &request;
  waiting_.push_back(std::move(entry));
}

double EngineModel::BeginStep() {
  in_step_ = true;
  prompt_tokens_left_ = level_s_ ? Allotment() : options_.token_budget;
  BatchLoad batch;
  if (!ScheduleRunning(batch)) Admit(batch);
  return options_.cost.Seconds(batch);
}

int64_t EngineModel::Allotment() const {
  RankWork work{.cost = options_.cost};
  std::vector<PromptLeft> prompts;
  for (const Entry& entry : running_) {
    const int64_t left = entry.tokens() - entry.computed;
    if (entry.generated > 0 && left == 1) {
      ++work.decodes;
      work.decode_context += static_cast<double>(entry.tokens());
    } else {
      prompts.push_back({left, entry.computed});
    }
  }
  for (const Entry& entry : waiting_) {
    const int64_t cached = static_cast<int64_t>(Match(entry).size()) * kEngineBlockTokens;
    prompts.push_back({entry.tokens() - cached, cached});
  }
  work.prompts = prompts;
  return TokensWithin(work, *level_s_);
}

bool EngineModel::ScheduleRunning(BatchLoad& batch) {
  bool preempted = false;
  for (Entry& entry : running_) entry.scheduled = 0;
  for (size_t i = 0; i < running_.size() && batch.tokens < options_.token_budget; ++i) {
    const int64_t left = running_[i].tokens() - running_[i].computed;
    const bool decode = running_[i].generated > 0 && left == 1;
    int64_t tokens = std::min(left, options_.token_budget - batch.tokens);
    if (!decode) {
      tokens = std::min(tokens, prompt_tokens_left_);
      prompt_tokens_left_ -= tokens;
    }
    if (tokens == 0) continue;
    while (i < running_.size() && !Extend(running_[i], tokens)) {
      Preempt();
      preempted = true;
    }
    if (i < running_.size()) Schedule(running_[i], tokens, batch);
  }
  return preempted;
}

void EngineModel::Admit(BatchLoad& batch) {
  while (!waiting_.empty() && std::cmp_less(running_.size(), options_.slots) &&
         batch.tokens < options_.token_budget && prompt_tokens_left_ > 0) {
    Entry& entry = waiting_.front();
    const std::vector<BlockPool::Block> found = Match(entry);
    const auto in_use = std::count_if(found.begin(), found.end(),
                                      [this](BlockPool::Block block) { return pool_.in_use(block); });
    if (BlocksOf(entry.tokens()) - in_use > pool_.free_blocks()) return;
    for (const BlockPool::Block block : found) pool_.Share(block);
    entry.blocks = found;
    entry.computed = static_cast<int64_t>(found.size()) * kEngineBlockTokens;
    if (entry.cached < 0) entry.cached = std::min(entry.computed, entry.request->prompt_tokens - 1);
    const int64_t tokens = std::min(
        {entry.tokens() - entry.computed, options_.token_budget - batch.tokens, prompt_tokens_left_});
    prompt_tokens_left_ -= tokens;
    Extend(entry, tokens);
    running_.push_back(std::move(entry));
    waiting_.pop_front();
    Schedule(running_.back(), tokens, batch);
  }
}

void EngineModel::Schedule(Entry& entry, int64_t tokens, BatchLoad& batch) {
  entry.scheduled = tokens;
  if (entry.generated > 0 && tokens == 1) {
    batch.AddDecode(entry.tokens());
  } else {
    batch.AddPrefill(tokens, entry.computed);
  }
}

std::vector<BlockPool::Block> EngineModel::Match(const Entry& entry) const {
  std::vector<BlockPool::Block> found;
  // At least the last token must be computed.
  const auto most = static_cast<size_t>((entry.tokens() - 1) / kEngineBlockTokens);
  for (size_t i = 0; i < most; ++i) {
    const auto block = pool_.Find(entry.request->blocks[i]);
    if (!block) break;
    found.push_back(*block);
  }
  return found;
}

bool EngineModel::Extend(Entry& entry, int64_t tokens) {
  const int64_t more = BlocksOf(entry.computed + tokens) - static_cast<int64_t>(entry.blocks.size());
  if (more > pool_.free_blocks()) return false;
  for (int64_t i = 0; i < more; ++i) entry.blocks.push_back(pool_.Allocate());
  // The blocks are named before the step ends, so that prompts admitted in the same step can share them.
  const auto full = static_cast<size_t>((entry.computed + tokens) / kEngineBlockTokens);
  for (auto i = static_cast<size_t>(entry.computed / kEngineBlockTokens); i < full; ++i)
    pool_.Name(entry.blocks[i], entry.request->blocks[i]);
  return true;
}

void EngineModel::Preempt() {
  Entry entry = std::move(running_.back());
  running_.pop_back();
  Release(entry);
  entry.computed = entry.scheduled = 0;
  waiting_.push_front(std::move(entry));
  ++preemptions_;
}

void EngineModel::Release(Entry& entry) {
  for (auto block = entry.blocks.rbegin(); block != entry.blocks.rend(); ++block) pool_.Release(*block);
  entry.blocks.clear();
}

EngineStep EngineModel::EndStep() {
  in_step_ = false;
  EngineStep step;
  for (const Entry& entry : waiting_) step.load_tokens += entry.tokens();
  for (Entry& entry : running_) {
    step.load_tokens += entry.tokens();
    entry.computed += entry.scheduled;
    if (entry.scheduled == 0 || entry.computed < entry.tokens()) continue;
    if (++entry.generated == 1) step.first_tokens.push_back({entry.request, entry.cached});
    if (entry.generated < entry.request->output_tokens) continue;
    step.finished.push_back(entry.request);
    Release(entry);
  }
  std::erase_if(running_, [](const Entry& entry) { return entry.generated >= entry.request->output_tokens; });
  return step;
}

int64_t EngineModel::Cached(const PrefixRequest& request) const {
  Entry entry;
  entry.request = &request;
  return static_cast<int64_t>(Match(entry).size()) * kEngineBlockTokens;
}

std::vector<HeldRequest> EngineModel::Held() const {
  std::vector<HeldRequest> held;
  for (const Entry& entry : running_)
    held.push_back({entry.request, entry.generated, std::max<int64_t>(0, entry.computed - entry.cached),
                    entry.tokens() - entry.computed});
  for (const Entry& entry : waiting_) held.push_back({entry.request, entry.generated, 0, entry.tokens()});
  return held;
}

}  // namespace bfio::sim
