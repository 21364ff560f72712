#include "router/core/prefill/prefill_planner.h"

#include <cmath>
#include <numeric>

#include "router/core/prefill/prompt_placement.h"

namespace bfio::core {
namespace {

// A prompt is overdue after this multiple of its intended time. It then gets its share in every step, however
// few ranks share the rise, so that no prompt starves on a rank that is never below the level.
constexpr double kOverdue = 2;
// Prompts lengthen a step at most by this number of mean prompts or, where these are short, by this multiple
// of the step without prompts. The fixed part of a step is then a third of it, so that longer steps gain
// little, but would delay all requests that decode or arrive.
constexpr double kMostRise = 2;
// Objectives alone lengthen a step at most by this share, so that later tokens keep two thirds of their rate.
// Measured on conversation lengths at load 0.8: longer steps keep requests in the group for longer, which
// exceeds the capacity, and then fewer first tokens are in time.
constexpr double kMostRiseForObjectives = 0.5;
// A number of tokens that no step can complete.
constexpr int64_t kNoEnd = int64_t{1} << 40;

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
    bound_.resize(waiting.size());
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
    const double supply_s = std::max(LevelOfSupply(wanted), LevelOfObjectives());
    // A rank with exactly the tokens that fit would stop the level's rise.
    const auto bind_below = [&](double level_s) {
      return BindOnce([&](const PrefillRank& rank) {
        const double supply = Supply(rank, level_s);
        return supply > 0 && static_cast<double>(WorkOf(rank).PromptTokens()) < supply + 1;
      });
    };
    while (bind_below(supply_s)) {
    }
    // A level above the one that the present prompts fill leaves unused time on ranks with fewer prompts.
    for (bool more = true; more;) {
      decision_.level_s = std::max(LevelOf(wanted), LevelOfObjectives());
      for (more = false; bind_below(decision_.level_s); more = true) {
      }
    }
    return std::move(decision_);
  }

 private:
  static RankWork WorkOf(const PrefillRank& rank) {
    return {rank.cost, rank.decodes, rank.decode_context, rank.prompts};
  }

  // --- how much ---

  // Arriving prefill work, in seconds of rank time per second.
  double Arriving() const { return traffic_.arrivals_per_s * traffic_.mean_prefill_s; }

  // Number of steps in which the best number of prompts in progress arrives. Where that number is below 1, no
  // other prompt is expected in time; the result is then limited by what computing one prompt at once costs
  // decodes.
  double Spread() const {
    const double most = settings_.prompts_per_rank * static_cast<double>(ranks_.size());
    const double best = std::sqrt(settings_.pace * Arriving() * static_cast<double>(decodes_));
    const double per_step = traffic_.arrivals_per_s * traffic_.step_s;
    if (!(per_step > 0)) return 0;
    const double alone_s = settings_.pace * traffic_.mean_prefill_s * static_cast<double>(decodes_);
    return std::min(std::min(most, best) / per_step, alone_s / traffic_.step_s);
  }
  double WithLag(double steps) const { return std::max(settings_.least_steps, steps) + traffic_.lag_steps; }

  // tau, steps.
  double Horizon() const { return WithLag(Spread()); }

  double ShareOfAPrompt() const { return std::max(1.0, traffic_.mean_prompt_tokens / Horizon()); }

  // Tokens of the rank's first prompt that it should compute in a step, so that the prompt takes no longer
  // than a mean one, as far as free rows suffice and are cheap: a free row still takes the time of attention
  // to the tokens before it.
  double OwnShare(const PrefillRank& rank) const {
    if (rank.prompts.empty()) return 0;
    const PromptLeft& first = rank.prompts.front();
    const double attention =
        rank.cost.k1_s_per_pair * static_cast<double>(first.done) / rank.cost.a_s_per_token;
    const double cheap = static_cast<double>(WorkOf(rank).FreeRows()) * std::max(0.0, 1 - attention);
    return std::min(
        {static_cast<double>(first.left + first.done) / Horizon(), cheap, static_cast<double>(first.left)});
  }

  // Seconds of work per second that a rank with a prompt computes at the lowest level; mean over the ranks.
  // Work is measured as the time that its rows would take above the knee. In the time below the slowest
  // rank's, a rank computes as many tokens as their attention allows, of its first prompt or of half a mean
  // one.
  double FreeSpeed() const {
    double free_s = 0, all_s = 0;
    for (const PrefillRank& rank : ranks_) {
      const RankWork work = WorkOf(rank);
      const PromptLeft next = {.left = kNoEnd,
                               .done = rank.prompts.empty()
                                           ? static_cast<int64_t>(traffic_.mean_prompt_tokens / 2)
                                           : rank.prompts.front().done};
      const double below_s = std::max(0.0, least_s_ - work.SecondsWithoutPrompts());
      free_s += rank.cost.a_s_per_token *
                static_cast<double>(PromptPartWithin(rank.cost, next, work.FreeRows(), below_s));
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
    const double paced_s = Horizon() * std::max(traffic_.step_s, least_s_);
    const double paced = paced_s > 0 ? traffic_.mean_prefill_s / paced_s : 0;
    LevelTerms terms;
    terms.least_s = least_s_;
    terms.wanted_tokens = wanted;
    terms.least_sharing = std::max(settings_.sharing * company, decodes * spare / behind);
    terms.paying_sharing = decodes * std::max(free, paced);
    return terms;
  }

  double WantedTokens() const {
    const double share = ShareOfAPrompt();
    double wanted = static_cast<double>(could_run_) * share, most = 0;
    for (const PrefillRank& rank : ranks_) {
      wanted += std::max(0.0, OwnShare(rank) - share);
      most += kMostRise * std::max(traffic_.mean_prompt_tokens, least_s_ / rank.cost.a_s_per_token);
    }
    return std::min(wanted, most);
  }

  // --- the level if every rank with a free slot had unlimited prompts; context is not counted ---

  static double Supply(const PrefillRank& rank, double level_s) {
    const RankWork work = WorkOf(rank);
    const double over_s = level_s - work.SecondsWithoutPrompts();
    if (over_s < 0) return 0;
    return static_cast<double>(work.FreeRows()) + over_s / rank.cost.a_s_per_token;
  }

  double LevelOfSupply(double wanted) const {
    // A rank without a free slot may get one soon, and waiting for it costs less than slowing down the
    // slowest rank. After the life of a mean request that is no longer expected.
    const double life_s = traffic_.mean_output_tokens * traffic_.step_s;
    const bool waits = std::none_of(waiting_.begin(), waiting_.end(),
                                    [&](const WaitingPrompt& prompt) { return prompt.waited_s >= life_s; });
    std::vector<double> most;
    for (const PrefillRank& rank : ranks_) {
      most.push_back(waits || rank.free_slots > 0 ? std::numeric_limits<double>::infinity()
                                                  : static_cast<double>(WorkOf(rank).PromptTokens()));
    }
    const auto supply = [&](double level_s) {
      double tokens = 0;
      for (size_t g = 0; g < ranks_.size(); ++g) tokens += std::min(most[g], Supply(ranks_[g], level_s));
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
    std::vector<int64_t> own;
    for (const PrefillRank& rank : ranks_) {
      work.push_back(WorkOf(rank));
      own.push_back(static_cast<int64_t>(OwnShare(rank)));
    }
    LevelTerms terms = Terms(wanted);
    terms.own_tokens = own;
    const double most_s = least_s_ + kMostRise * std::max(traffic_.mean_prefill_s, least_s_);
    return std::min(std::max(FillLevel(work, terms).seconds, LevelOfOverdue()), most_s);
  }

  // The level at which every rank whose first prompt is overdue computes that prompt's share.
  double LevelOfOverdue() const {
    double level_s = 0;
    for (const PrefillRank& rank : ranks_) {
      if (rank.prompts.empty()) continue;
      const PromptLeft& first = rank.prompts.front();
      const auto whole = static_cast<double>(first.left + first.done);
      const double means = std::max(1.0, whole / std::max(1.0, traffic_.mean_prompt_tokens));
      if (rank.first_bound_for_s <= kOverdue * means * Horizon() * traffic_.step_s) continue;
      const RankWork work = WorkOf(rank);
      const double share = std::min(static_cast<double>(first.left), std::ceil(ShareOfAPrompt()));
      level_s = std::max(
          level_s, work.SecondsWithoutPrompts() +
                       rank.cost.a_s_per_token * std::max(0.0, share - static_cast<double>(work.FreeRows())) +
                       rank.cost.k1_s_per_pair * share * (static_cast<double>(first.done) + share / 2));
    }
    return level_s;
  }

  // --- objectives ---

  // The level that meets every objective that a permitted level can meet.
  double LevelOfObjectives() const {
    const double most_s = (1 + kMostRiseForObjectives) * least_s_;
    double level_s = 0;
    const auto meet = [&](double other_s, double work_s, double left_s) {
      const double needed_s = left_s < kNoObjective ? LevelWithin(other_s, least_s_, work_s, left_s) : 0;
      if (needed_s <= most_s) level_s = std::max(level_s, needed_s);
    };
    const auto ranks = static_cast<double>(ranks_.size());
    BatchCost mean{.a_s_per_token = 0};
    double mean_other_s = 0, before_s = 0;
    for (const PrefillRank& rank : ranks_) {
      const RankWork work = WorkOf(rank);
      const double other_s =
          work.SecondsWithoutPrompts() - rank.cost.a_s_per_token * static_cast<double>(work.FreeRows());
      double work_s = 0;
      for (size_t i = 0; i < rank.prompts.size(); ++i) {
        work_s += WholePromptSeconds(rank.cost, rank.prompts[i], 0);
        if (i < rank.due_s.size()) meet(other_s, work_s, rank.due_s[i]);
      }
      mean_other_s += other_s / ranks;
      before_s += work_s / ranks;
      mean.a_s_per_token += rank.cost.a_s_per_token / ranks;
      mean.k1_s_per_pair += rank.cost.k1_s_per_pair / ranks;
    }
    for (const int32_t i : NextWithObjectives()) {
      const double own_s = WholePromptSeconds(mean, waiting_[i].Least(), 0);
      meet(mean_other_s, before_s + own_s, waiting_[i].due_s);
      before_s += own_s / ranks;
    }
    return level_s;
  }

  // The waiting prompts for which there are slots, in the order in which they will be bound. Empty where none
  // has an objective.
  std::vector<int32_t> NextWithObjectives() const {
    const auto has = [&](int32_t i) { return waiting_[i].due_s < kNoObjective; };
    if (std::none_of(left_.begin(), left_.end(), has)) return {};
    std::vector<int32_t> next = left_;
    const auto count = std::min(next.size(), static_cast<size_t>(std::max<int64_t>(0, free_slots_)));
    SortNext(next, count);
    next.resize(count);
    return next;
  }

  // --- placement ---

  // Gives one more prompt to each rank that has a free slot and for which `wants` is true; false when there
  // is none.
  template <class Wants>
  bool BindOnce(const Wants& wants) {
    std::vector<WorkerIndex> takers;
    for (WorkerIndex g = 0; g < std::ssize(ranks_); ++g) {
      const PrefillRank& rank = ranks_[g];
      if (rank.free_slots > 0 && wants(rank)) takers.push_back(g);
    }
    const std::vector<int32_t> chosen = TakeNext(takers);
    std::vector<double> expected_s;
    int64_t rows = 0;
    for (const PrefillRank& rank : ranks_) {
      expected_s.push_back(ExpectedSeconds(rank));
      rows += rank.decodes + std::ssize(rank.prompts);
    }
    std::stable_sort(takers.begin(), takers.end(),
                     [&](WorkerIndex a, WorkerIndex b) { return expected_s[a] < expected_s[b]; });
    const std::vector<double> slowest = SlowestProbabilities(expected_s, rows);
    for (const int32_t i : chosen) {
      const WaitingPrompt& prompt = waiting_[i];
      // The longest prompt goes to the rank that will be least loaded, unless caches hold parts of it.
      auto best = takers.begin();
      if (!prompt.cached.empty()) {
        const auto cost = [&](WorkerIndex g) {
          return PlacementCost(SecondsOn(prompt, g), std::ssize(ranks_), traffic_.mean_output_tokens,
                               slowest[g], AddedSeconds(prompt, g));
        };
        best = std::min_element(takers.begin(), takers.end(),
                                [&](WorkerIndex a, WorkerIndex b) { return cost(a) < cost(b); });
      }
      decision_.bindings.push_back({i, *best});
      PrefillRank& rank = ranks_[*best];
      rank.Add(prompt.On(*best), prompt.due_s);
      --rank.free_slots;
      --free_slots_;
      takers.erase(best);
    }
    return !chosen.empty();
  }

  double SecondsOn(const WaitingPrompt& prompt, WorkerIndex g) const {
    return WholePromptSeconds(ranks_[g].cost, prompt.On(g), 0);
  }
  // By how much the rank's expected decode time grows with the prompt's request.
  double AddedSeconds(const WaitingPrompt& prompt, WorkerIndex g) const {
    return ExpectedSeconds(ranks_[g], prompt.On(g)) - ExpectedSeconds(ranks_[g]);
  }

  // Whether the prompt waits for a rank with a free slot that holds more of it than every taker: no longer
  // than a taker would compute the difference. False in a group without decodes, where no step would end the
  // wait.
  bool Awaits(const WaitingPrompt& prompt, absl::Span<const WorkerIndex> takers) const {
    if (prompt.cached.empty() || decodes_ == 0) return false;
    double least_s = std::numeric_limits<double>::infinity(), taken_s = least_s;
    for (WorkerIndex g = 0; g < std::ssize(ranks_); ++g) {
      if (ranks_[g].free_slots > 0) least_s = std::min(least_s, SecondsOn(prompt, g));
    }
    for (const WorkerIndex g : takers) taken_s = std::min(taken_s, SecondsOn(prompt, g));
    return prompt.waited_s + traffic_.step_s < taken_s - least_s;
  }

  // Decode time of the rank after its requests, and that of another prompt, have grown by settings_.growth.
  double ExpectedSeconds(const PrefillRank& rank, const std::optional<PromptLeft>& more = {}) const {
    const double growth = settings_.growth * traffic_.mean_output_tokens;
    double context = rank.decode_context + growth * static_cast<double>(rank.decodes);
    for (const PromptLeft& prompt : rank.prompts) {
      context += static_cast<double>(prompt.left + prompt.done) + growth;
    }
    if (more) context += static_cast<double>(more->left + more->done) + growth;
    const auto rows = rank.decodes + std::ssize(rank.prompts) + (more ? 1 : 0);
    const auto beyond = static_cast<double>(std::max<int64_t>(0, rows - rank.cost.b0_tokens));
    return rank.cost.a_s_per_token * beyond + rank.cost.k2_s_per_token * context;
  }

  // Sorts the next `count` prompts to the front: the oldest where slots are short, otherwise by age over the
  // square root of the length.
  void SortNext(std::vector<int32_t>& prompts, size_t count) const {
    if (slots_short_) return;
    const auto urgency = [&](int32_t i) {
      return (waiting_[i].waited_s + traffic_.step_s) /
             std::sqrt(static_cast<double>(std::max<int64_t>(1, waiting_[i].Least().left)));
    };
    std::partial_sort(prompts.begin(), prompts.begin() + static_cast<std::ptrdiff_t>(count), prompts.end(),
                      [&](int32_t a, int32_t b) {
                        const double of_a = urgency(a), of_b = urgency(b);
                        return of_a != of_b ? of_a > of_b : a < b;
                      });
  }

  // Removes the next prompts for these ranks from left_, at most one for each: the longest first.
  std::vector<int32_t> TakeNext(absl::Span<const WorkerIndex> takers) {
    if (takers.empty()) return {};
    std::vector<int32_t> next;
    for (const int32_t i : left_) {
      if (!Awaits(waiting_[i], takers)) next.push_back(i);
    }
    const size_t count = std::min(takers.size(), next.size());
    SortNext(next, count);
    next.resize(count);
    for (const int32_t i : next) bound_[static_cast<size_t>(i)] = 1;
    std::erase_if(left_, [&](int32_t i) { return bound_[static_cast<size_t>(i)] != 0; });
    std::stable_sort(next.begin(), next.end(),
                     [&](int32_t a, int32_t b) { return waiting_[a].tokens > waiting_[b].tokens; });
    return next;
  }

  static constexpr int kHalvings = 40;

  std::vector<PrefillRank> ranks_;
  const absl::Span<const WaitingPrompt> waiting_;
  const PrefillTraffic& traffic_;
  const PrefillSettings& settings_;
  int64_t decodes_ = 0, free_slots_ = 0;
  // Number of prompts that are bound, or would get a slot.
  int64_t could_run_ = 0;
  // The slowest rank's time without prompts, in seconds.
  double least_s_ = 0;
  // FreeSpeed(), which does not depend on bindings.
  double free_speed_ = 0;
  bool slots_short_ = false;
  // Indices into `waiting` that are not bound yet, ascending; by index, whether it is bound.
  std::vector<int32_t> left_;
  std::vector<char> bound_;
  PrefillDecision decision_;
};

}  // namespace

PrefillDecision PlanPrefill(absl::Span<const PrefillRank> ranks, absl::Span<const WaitingPrompt> waiting,
                            const PrefillTraffic& traffic, const PrefillSettings& settings) {
  return Planner(ranks, waiting, traffic, settings).Plan();
}

}  // namespace bfio::core
