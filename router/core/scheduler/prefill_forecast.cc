#include "router/core/scheduler/prefill_forecast.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace bfio::core {
namespace {

// A rank at the beginning of a step, and the requests in flight to it.
class Forecast {
 public:
  Forecast(const GroupAccounts& accounts, WorkerIndex index, PrefillRank& rank)
      : accounts_(accounts), worker_(accounts.worker(index)), rank_(rank) {
    rank.cost = *worker_.spec.cost;
    rank.prompts.clear();
    prompts_ = accounts.PromptsOn(index);
    const int64_t step = worker_.last_step + 1;
    int64_t pending = 0, context = worker_.base + worker_.active * step;
    for (const GroupAccounts::PromptOn& prompt : prompts_) {
      if (prompt.inflight) continue;
      ++pending;
      context -= prompt.tokens;
    }
    rank.decodes = std::max<int64_t>(0, worker_.active - pending);
    rank.decode_context = static_cast<double>(std::max<int64_t>(0, context));
  }

  // Advances to the beginning of step `target`, when the pool's clock is at `clock`.
  void Advance(int64_t target, int64_t clock, double step_s) {
    for (int64_t step = worker_.last_step + 1;; ++step) {
      while (next_ < prompts_.size() && prompts_[next_].first_step <= step) {
        rank_.prompts.push_back({prompts_[next_].left, prompts_[next_].tokens - prompts_[next_].left});
        ++next_;
      }
      if (step >= target) break;
      Compute(step);
    }
    // The prompts at the front have been computed.
    const size_t first = next_ - rank_.prompts.size();
    rank_.due_s.clear();
    for (size_t i = first; i < next_; ++i) {
      rank_.due_s.push_back(DueIn(prompts_[i].ttft_objective_s, clock - prompts_[i].enqueued_step, step_s));
    }
    const int64_t steps = rank_.prompts.empty() ? 0 : target - prompts_[first].planned_for;
    rank_.first_bound_for_s = static_cast<double>(std::max<int64_t>(0, steps)) * step_s;
  }

 private:
  void Compute(int64_t step) {
    const int64_t budget = worker_.prefill->token_budget;
    int64_t tokens = std::max(budget - rank_.decodes, kMinPrefillRows);
    if (const std::optional<double> level_s = accounts_.LevelAt(step)) {
      tokens = std::min(
          tokens, TokensWithin({rank_.cost, rank_.decodes, rank_.decode_context, rank_.prompts}, *level_s));
    }
    rank_.decode_context += static_cast<double>(rank_.decodes);
    ComputePrompts(tokens, rank_.prompts, [this](const PromptLeft& prompt) {
      ++rank_.decodes;
      rank_.decode_context += static_cast<double>(prompt.done + 1);
    });
  }

  const GroupAccounts& accounts_;
  const GroupAccounts::Worker& worker_;
  PrefillRank& rank_;
  std::vector<GroupAccounts::PromptOn> prompts_;
  // Index of the first of prompts_ that has not reached the rank.
  size_t next_ = 0;
};

void FillTraffic(const PromptTraffic& seen, PrefillView& view) {
  double a = 0, k1 = 0;
  const auto ranks = static_cast<double>(view.ranks.size());
  for (const PrefillRank& rank : view.ranks) {
    a += rank.cost.a_s_per_token / ranks;
    k1 += rank.cost.k1_s_per_pair / ranks;
  }
  view.traffic.step_s = seen.step_s.value;
  view.traffic.arrivals_per_s = seen.step_s.value > 0 ? seen.placed_per_step.value / seen.step_s.value : 0;
  view.traffic.mean_prompt_tokens = seen.prompt_tokens.value;
  view.traffic.mean_prefill_s = a * seen.prompt_tokens.value + k1 * seen.prompt_squares.value / 2;
  view.traffic.mean_output_tokens = seen.output_tokens.value;
}

// What all ranks report.
GroupTerms CommonTerms(const GroupAccounts& accounts) {
  GroupTerms common = accounts.worker(0).spec.terms;
  for (const GroupAccounts::Worker& worker : accounts.workers()) {
    const GroupTerms& terms = worker.spec.terms;
    common.padded = common.padded && terms.padded;
    common.captured_rows = std::max(common.captured_rows, terms.captured_rows);
    common.prompt_s = std::min(common.prompt_s, terms.prompt_s);
    common.eager_s = std::min(common.eager_s, terms.eager_s);
  }
  return common;
}

}  // namespace

bool ForecastPrefill(const GroupAccounts& accounts, const PlanSteps& steps, PrefillView& view) {
  const auto tells = [](const GroupAccounts::Worker& worker) {
    return worker.prefill.has_value() && worker.spec.cost.has_value();
  };
  if (!std::all_of(accounts.workers().begin(), accounts.workers().end(), tells)) return false;
  view.ranks.resize(accounts.workers().size());
  view.token_budget = std::numeric_limits<int64_t>::max();
  for (const GroupAccounts::Worker& worker : accounts.workers())
    view.token_budget = std::min(view.token_budget, worker.prefill->token_budget);
  for (WorkerIndex g = 0; g < accounts.num_workers(); ++g) {
    Forecast(accounts, g, view.ranks[g])
        .Advance(steps.targets[g], steps.clock, accounts.traffic().step_s.value);
  }
  view.terms = CommonTerms(accounts);
  FillTraffic(accounts.traffic(), view);
  view.traffic.lag_steps = static_cast<int32_t>(std::max<int64_t>(0, steps.step - steps.reported - 1));
  return true;
}

}  // namespace bfio::core
