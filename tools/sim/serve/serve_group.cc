#include "tools/sim/serve/serve_group.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace bfio::sim {
namespace {

// Random stream of the noise, derived from the run's seed; arrivals have their own (serve_run.cc).
constexpr uint64_t kNoiseStream = 1;

}  // namespace

ServeGroup::ServeGroup(const Options& options, std::vector<ServeRequest>* requests)
    : slots_(options.slots),
      cost_(options.cost),
      jitter_(options.jitter),
      rng_(Rng(options.seed).Fork(kNoiseStream)),
      requests_(requests),
      ranks_(static_cast<size_t>(options.ranks)),
      hidden_(static_cast<size_t>(options.ranks)) {
  for (Hidden& hidden : hidden_) hidden.ends.resize(static_cast<size_t>(options.longest_output) + 1);
}

void ServeGroup::Bind(ServeRequestIndex request, int32_t rank, double now_s) {
  const int64_t tokens = (*requests_)[request].prompt;
  ranks_[rank].prompts.push_back({request, tokens, 0, now_s});
  ranks_[rank].prompt_tokens += tokens;
  ++active_;
}

const ServeStep& ServeGroup::Step(const std::vector<RankOrder>& orders, double now_s) {
  step_.tokens = 0;
  step_.loads.assign(ranks_.size(), {});
  step_.decode_loads.assign(ranks_.size(), {});
  step_.ended.clear();
  step_.gaps.clear();
  for (int32_t g = 0; g < std::ssize(ranks_); ++g) {
    ServeRank& rank = ranks_[g];
    BatchLoad& decodes = step_.decode_loads[g];
    decodes.tokens = rank.decodes;
    decodes.decode_context = static_cast<double>(rank.decode_context);
    if (orders[g].decodes) step_.loads[g] = decodes;
    ComputePrompts(g, orders[g].prompt_tokens, step_.loads[g]);
  }
  Time();
  const double end_s = now_s + step_.seconds;
  for (int32_t g = 0; g < std::ssize(ranks_); ++g) {
    if (orders[g].decodes) Decode(g, end_s);
    GiveFirstTokens(g, end_s);
  }
  return step_;
}

// Prompts begin in order, as long as slots are free.
void ServeGroup::ComputePrompts(int32_t g, int64_t most, BatchLoad& load) {
  ServeRank& rank = ranks_[g];
  for (size_t i = 0; i < rank.prompts.size() && most > 0; ++i) {
    BoundPrompt& prompt = rank.prompts[i];
    if (std::cmp_equal(i, rank.begun)) {
      if (rank.running() >= slots_) break;
      ++rank.begun;
    }
    const int64_t chunk = std::min(most, prompt.left);
    load.AddPrefill(chunk, prompt.done);
    rank.prompt_tokens -= chunk;
    prompt.left -= chunk;
    prompt.done += chunk;
    most -= chunk;
    if (prompt.left == 0) hidden_[g].prefilled.push_back(prompt.request);
  }
}

void ServeGroup::Time() {
  step_.seconds = 0;
  step_.rank_s.clear();
  step_.decode_s.clear();
  const StepMode mode = cost_.terms.ModeOf(step_.loads), decode_mode = cost_.terms.ModeOf(step_.decode_loads);
  for (size_t g = 0; g < ranks_.size(); ++g) {
    const double noise = Noise();
    step_.rank_s.push_back(cost_.RankSeconds(step_.loads[g], mode) * noise);
    step_.decode_s.push_back(cost_.RankSeconds(step_.decode_loads[g], decode_mode) * noise);
    step_.seconds = std::max(step_.seconds, step_.rank_s.back());
  }
}

void ServeGroup::Decode(int32_t g, double end_s) {
  ServeRank& rank = ranks_[g];
  Hidden& hidden = hidden_[g];
  if (rank.decodes == 0) return;
  for (const auto& [since_s, count] : hidden.since) step_.gaps.emplace_back(end_s - since_s, count);
  step_.tokens += rank.decodes;
  rank.decode_context += rank.decodes;
  auto& ends = hidden.ends[static_cast<size_t>(hidden.decode_steps) % hidden.ends.size()];
  for (const ServeRequestIndex index : ends) {
    const ServeRequest& request = (*requests_)[index];
    --rank.decodes;
    rank.decode_context -= request.prompt + request.output;
    End(index, end_s);
  }
  ends.clear();
  ++hidden.decode_steps;
  hidden.since.assign(1, {end_s, rank.decodes});
}

void ServeGroup::GiveFirstTokens(int32_t g, double end_s) {
  ServeRank& rank = ranks_[g];
  Hidden& hidden = hidden_[g];
  int64_t joined = 0;
  for (const ServeRequestIndex index : hidden.prefilled) {
    ServeRequest& request = (*requests_)[index];
    rank.prompts.pop_front();
    --rank.begun;
    request.first_token_s = end_s;
    ++step_.tokens;
    if (request.output == 1) {
      End(index, end_s);
      continue;
    }
    ++joined;
    ++rank.decodes;
    rank.decode_context += request.prompt + 1;
    const auto last = static_cast<size_t>(hidden.decode_steps + request.output - 2);
    hidden.ends[last % hidden.ends.size()].push_back(index);
  }
  hidden.prefilled.clear();
  if (joined > 0) hidden.since.emplace_back(end_s, joined);
}

void ServeGroup::End(ServeRequestIndex index, double end_s) {
  (*requests_)[index].end_s = end_s;
  step_.ended.push_back(index);
  --active_;
}

double ServeGroup::Noise() {
  return jitter_ > 0 ? std::exp(jitter_ * rng_.Normal() - jitter_ * jitter_ / 2) : 1;
}

}  // namespace bfio::sim
