#include "router/core/prefill/prefill_planner.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace bfio::core {
namespace {

// A prompt that has not been computed after so many times the steps that it was meant to take is given its
// share whoever else shares the step, so that none is bound to a rank that is never below the level.
constexpr double kOverdue = 2;
// Where no time is free it waits no longer than this share of what a mean one costs all decodes if it pays
// alone: what waiting for company can save is not much more. Where free time computes it meanwhile, waiting
// loses less: the share is that over the cube of what free time leaves over, by trial.
constexpr double kMostOfItsCost = 0.03;
constexpr double kLeastPaid = 0.01;
// A step is longer than without prompts by so many mean prompts or, where they are short, by so many times
// itself at most: the fixed part of a step is then a third of it, so that longer steps gain little, and each
// delays all that decode, and all that arrive.
constexpr double kMostRise = 2;

class Planner {
 public:
  Planner(absl::Span<const PrefillRank> ranks, absl::Span<const WaitingPrompt> waiting,
          const PrefillTraffic& traffic, const PrefillSettings& settings)
      : ranks_(ranks.begin(), ranks.end()), waiting_(waiting), traffic_(traffic), settings_(settings) {
    int64_t bound = 0;
    for (const PrefillRank& rank : ranks_) {
      decodes_ += rank.decodes;
      free_slots_ += std::max<int64_t>(0, rank.free_slots);
      bound += static_cast<int64_t>(rank.prompts.size());
      if (rank.decodes > 0) least_s_ = std::max(least_s_, WorkOf(rank).SecondsWithoutPrompts());
    }
    free_speed_ = FreeSpeed();
    slots_short_ = static_cast<int64_t>(waiting.size()) > free_slots_;
    could_run_ = bound + std::min(free_slots_, static_cast<int64_t>(waiting.size()));
    left_.resize(waiting.size());
    std::iota(left_.begin(), left_.end(), 0);
  }

  PrefillDecision Plan() {
    if (decodes_ == 0) {
      BindOnce([](const PrefillRank&) { return true; });
      decision_.level_s = std::numeric_limits<double>::infinity();
      return std::move(decision_);
    }
    const double wanted = WantedTokens();
    const double supply_s = LevelOfSupply(wanted);
    while (BindOnce(
        [&](const PrefillRank& rank) { return WorkOf(rank).PromptTokens() < Supply(rank, supply_s); })) {
    }
    decision_.level_s = LevelOf(wanted);
    return std::move(decision_);
  }

 private:
  static RankWork WorkOf(const PrefillRank& rank) {
    return {rank.cost, rank.decodes, rank.decode_context, rank.prompts};
  }

  // --- how much ---

  // Of prefill that arrives, in ranks' time.
  double Arriving() const { return traffic_.arrivals_per_s * traffic_.mean_prefill_s; }

  // Steps in which as many requests arrive as are best under way.
  double Spread() const {
    const double most = settings_.prompts_per_rank * static_cast<double>(ranks_.size());
    const double best = std::sqrt(settings_.pace * Arriving() * static_cast<double>(decodes_));
    const double per_step = traffic_.arrivals_per_s * traffic_.step_s;
    return per_step > 0 ? std::min(most, best) / per_step : 0;
  }
  double WithLag(double steps) const { return std::max(settings_.least_steps, steps + traffic_.lag_steps); }

  // Share of what arrives that free time leaves over.
  double PaidShare() const {
    const double work = Arriving(), free = free_speed_ * static_cast<double>(ranks_.size());
    return work > 0 ? std::clamp(1 - free / work, 0.0, 1.0) : 0;
  }

  // tau, steps.
  double Horizon() const {
    const double spread = Spread(), paid = PaidShare();
    return WithLag((1 - paid) * spread + paid * std::min(spread, settings_.least_steps));
  }

  double ShareOfAPrompt() const { return std::max(1.0, traffic_.mean_prompt_tokens / Horizon()); }

  // Of a rank on average: the share of its time that prompts can have for nothing, free rows by what they
  // would take above the knee.
  double FreeSpeed() const {
    double free_s = 0, all_s = 0;
    for (const PrefillRank& rank : ranks_) {
      const RankWork work = WorkOf(rank);
      free_s += rank.cost.a_s_per_token * static_cast<double>(work.FreeRows()) +
                std::max(0.0, least_s_ - work.SecondsWithoutPrompts());
      all_s += least_s_;
    }
    return all_s > 0 ? free_s / all_s : 0;
  }

  // prefill_planner.h derives both numbers of ranks.
  LevelTerms Terms(double wanted) const {
    const auto ranks = static_cast<double>(ranks_.size());
    const auto decodes = static_cast<double>(decodes_);
    const double free = free_speed_, spare = std::max(0.0, free - Arriving() / ranks);
    const double behind = std::max(1.0, static_cast<double>(could_run_) / ranks);
    const double company = std::min(ranks, std::sqrt(2 * Arriving() * decodes));
    const double paced_s = WithLag(Spread()) * std::max(traffic_.step_s, least_s_);
    const double paced = paced_s > 0 ? traffic_.mean_prefill_s / paced_s : 0;
    LevelTerms terms;
    terms.least_s = least_s_;
    terms.wanted_tokens = wanted;
    terms.least_sharing = std::max(settings_.sharing * company, decodes * spare / behind);
    terms.paying_sharing = decodes * std::max(free, paced);
    return terms;
  }

  double WantedTokens() const {
    double most = 0;
    for (const PrefillRank& rank : ranks_) {
      most += kMostRise * std::max(traffic_.mean_prompt_tokens, least_s_ / rank.cost.a_s_per_token);
    }
    return std::min(static_cast<double>(could_run_) * ShareOfAPrompt(), most);
  }

  // --- the level, if every rank had prompts without end; context is left out ---

  static double Supply(const PrefillRank& rank, double level_s) {
    const RankWork work = WorkOf(rank);
    const double over_s = level_s - work.SecondsWithoutPrompts();
    if (over_s < 0) return 0;
    return static_cast<double>(work.FreeRows()) + over_s / rank.cost.a_s_per_token;
  }

  double LevelOfSupply(double wanted) const {
    const auto supply = [&](double level_s) {
      double tokens = 0;
      for (const PrefillRank& rank : ranks_) tokens += Supply(rank, level_s);
      return tokens;
    };
    if (supply(least_s_) >= wanted) return least_s_;
    double low = least_s_, high = least_s_;
    for (const PrefillRank& rank : ranks_) {
      high = std::max(high, WorkOf(rank).SecondsWithoutPrompts() + wanted * rank.cost.a_s_per_token);
    }
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (low + high) / 2;
      (supply(middle) < wanted ? low : high) = middle;
    }
    return high;
  }

  double LevelOf(double wanted) const {
    std::vector<RankWork> work;
    for (const PrefillRank& rank : ranks_) work.push_back(WorkOf(rank));
    const double most_s = least_s_ + kMostRise * std::max(traffic_.mean_prefill_s, least_s_);
    return std::max(std::min(FillLevel(work, Terms(wanted)).seconds, most_s), LevelOfOverdue());
  }

  // Seconds until a prompt as long as so many mean ones is overdue.
  double Patience(double means) const {
    const double meant_s = kOverdue * WithLag(Spread()) * traffic_.step_s * means;
    const double cost_s = kMostOfItsCost * static_cast<double>(decodes_) * traffic_.mean_prefill_s;
    const double paid = std::max(kLeastPaid, PaidShare());
    return std::min(meant_s, cost_s / (paid * paid * paid));
  }

  // At which every rank whose first prompt is overdue computes that prompt's share.
  double LevelOfOverdue() const {
    double level_s = 0;
    for (const PrefillRank& rank : ranks_) {
      if (rank.prompts.empty()) continue;
      const PromptLeft& first = rank.prompts.front();
      const auto whole = static_cast<double>(first.left + first.done);
      const double means = std::max(1.0, whole / std::max(1.0, traffic_.mean_prompt_tokens));
      if (rank.first_bound_for_s <= Patience(means)) continue;
      const RankWork work = WorkOf(rank);
      const double share = std::min(static_cast<double>(first.left), std::ceil(ShareOfAPrompt()));
      level_s = std::max(
          level_s, work.SecondsWithoutPrompts() +
                       rank.cost.a_s_per_token * std::max(0.0, share - static_cast<double>(work.FreeRows())) +
                       rank.cost.k1_s_per_pair * share * (static_cast<double>(first.done) + share / 2));
    }
    return level_s;
  }

  // --- placement ---

  // One prompt more for each rank that has a free slot and for which `wants` is true; false: none.
  template <class Wants>
  bool BindOnce(const Wants& wants) {
    std::vector<WorkerIndex> takers;
    for (WorkerIndex g = 0; g < std::ssize(ranks_); ++g) {
      const PrefillRank& rank = ranks_[g];
      if (rank.free_slots > 0 && wants(rank)) takers.push_back(g);
    }
    const size_t count = std::min(takers.size(), left_.size());
    if (count == 0) return false;
    std::vector<int32_t> chosen = TakeNext(count);
    // The longest to the rank that will be least loaded.
    std::stable_sort(chosen.begin(), chosen.end(),
                     [&](int32_t a, int32_t b) { return waiting_[a].tokens > waiting_[b].tokens; });
    std::vector<double> expected_s(ranks_.size());
    for (const WorkerIndex g : takers) expected_s[g] = ExpectedSeconds(ranks_[g]);
    std::stable_sort(takers.begin(), takers.end(),
                     [&](WorkerIndex a, WorkerIndex b) { return expected_s[a] < expected_s[b]; });
    for (size_t i = 0; i < count; ++i) {
      decision_.bindings.push_back({chosen[i], takers[i]});
      PrefillRank& rank = ranks_[takers[i]];
      rank.prompts.push_back({waiting_[chosen[i]].tokens, 0});
      --rank.free_slots;
      --free_slots_;
    }
    return true;
  }

  // Decode time when all that it holds has grown on.
  double ExpectedSeconds(const PrefillRank& rank) const {
    const double growth = settings_.growth * traffic_.mean_output_tokens;
    double context = rank.decode_context + growth * static_cast<double>(rank.decodes);
    for (const PromptLeft& prompt : rank.prompts) {
      context += static_cast<double>(prompt.left + prompt.done) + growth;
    }
    const auto rows = rank.decodes + static_cast<int64_t>(rank.prompts.size());
    const auto beyond = static_cast<double>(std::max<int64_t>(0, rows - rank.cost.b0_tokens));
    return rank.cost.a_s_per_token * beyond + rank.cost.k2_s_per_token * context;
  }

  // First come, first served where slots are short; else by age over the time it takes.
  std::vector<int32_t> TakeNext(size_t count) {
    if (!slots_short_) {
      const auto urgency = [&](int32_t i) {
        return (waiting_[i].waited_s + traffic_.step_s) /
               static_cast<double>(std::max<int64_t>(1, waiting_[i].tokens));
      };
      std::partial_sort(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(count), left_.end(),
                        [&](int32_t a, int32_t b) {
                          const double of_a = urgency(a), of_b = urgency(b);
                          return of_a != of_b ? of_a > of_b : a < b;
                        });
    }
    const std::vector<int32_t> taken(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(count));
    left_.erase(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(count));
    return taken;
  }

  static constexpr int kHalvings = 40;

  std::vector<PrefillRank> ranks_;
  const absl::Span<const WaitingPrompt> waiting_;
  const PrefillTraffic& traffic_;
  const PrefillSettings& settings_;
  int64_t decodes_ = 0, free_slots_ = 0;
  // Prompts that are bound, or would have a slot.
  int64_t could_run_ = 0;
  // The slowest rank's time without prompts.
  double least_s_ = 0;
  // FreeSpeed(), which depends on no binding.
  double free_speed_ = 0;
  bool slots_short_ = false;
  // Of `waiting`, not bound yet.
  std::vector<int32_t> left_;
  PrefillDecision decision_;
};

}  // namespace

PrefillDecision PlanPrefill(absl::Span<const PrefillRank> ranks, absl::Span<const WaitingPrompt> waiting,
                            const PrefillTraffic& traffic, const PrefillSettings& settings) {
  return Planner(ranks, waiting, traffic, settings).Plan();
}

}  // namespace bfio::core
