#include "router/core/prefill/prefill_planner.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace bfio::core {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Levels that are compared, few enough for 256 ranks in less than a millisecond. The largest rise is about
// kRange times the smallest.
constexpr int kLevels = 32;
constexpr double kRange = 1e3;
// Prompts lengthen a step at most by this number of mean prompts or, where these are short, by this multiple
// of the step without prompts: its fixed part is then a third of it, so that longer steps gain little.
constexpr double kMostRise = 2;
// Objectives alone lengthen a step at most by this share: in longer steps fewer first tokens are in time,
// because requests stay for longer.
constexpr double kMostRiseForObjectives = 0.5;
// Longest wait of a prompt for others: in steps, plus a multiple of what it costs the group. 8 times: plans
// are less even; 32: first tokens of short prompts take half as long again.
constexpr double kHeldSteps = 2, kHeldTimes = 16;
// An objective is at least this number of steps away, unless it needs longer ones: the last may end late.
constexpr double kStepsToObjective = 4;
// A released prompt with an objective goes so many steps before the last that meets it: its rank may change.
constexpr double kDueSteps = 2;
// The chance that a rank whose last prompt ends loses free rows, where none waits: others arrive at random.
constexpr double kRunsDry = 0.5;
// A prompt that takes several steps with most budgets; the rank where it adds least has most free time.
constexpr WaitingPrompt kTypical = {.tokens = 1 << 12};

// By rank: the probability that its decodes will take longest, from their expected times. `rows`: the
// requests of all ranks. The times vary by about the time of sqrt(n) requests, n being a rank's mean number.
// A rank that is faster than the slowest by that time is 1 / e as likely to be the slowest later.
std::vector<double> SlowestProbabilities(absl::Span<const double> expected_s, int64_t rows) {
  const auto ranks = static_cast<double>(expected_s.size());
  const double most_s = *std::max_element(expected_s.begin(), expected_s.end());
  const double mean_s = std::accumulate(expected_s.begin(), expected_s.end(), 0.0) / ranks;
  const double spread_s = rows > 0 ? mean_s / std::sqrt(static_cast<double>(rows) / ranks) : 0;
  std::vector<double> probabilities;
  for (const double seconds : expected_s) {
    probabilities.push_back(spread_s > 0 ? std::exp((seconds - most_s) / spread_s) : 1);
  }
  const double sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

class Planner {
 public:
  Planner(absl::Span<const PrefillRank> ranks, absl::Span<const WaitingPrompt> waiting,
          const PrefillTraffic& traffic, const GroupTerms& terms, const PrefillSettings& settings)
      : waiting_(waiting), traffic_(traffic), terms_(terms), settings_(settings) {
    int64_t most_rows = 0;
    for (const PrefillRank& rank : ranks) {
      most_rows = std::max(most_rows, rank.decodes);
      decodes_ += static_cast<double>(rank.decodes);
      free_slots_ += std::max<int64_t>(0, rank.free_slots);
      idle_ = idle_ && rank.decodes == 0 && rank.prompts.empty();
      const double own_s = RankWork{rank.cost, rank.decodes, rank.decode_context, {}}.SecondsWithoutPrompts();
      if (rank.decodes > 0) least_s_ = std::max(least_s_, own_s);
    }
    padded_rows_ = terms.padded && most_rows <= terms.captured_rows ? most_rows : 0;
    double free_s = 0, capacity = 0;
    for (const PrefillRank& rank : ranks) {
      const Rank& added = ranks_.emplace_back(*this, rank);
      free_s += added.free_s / static_cast<double>(ranks.size());
      capacity += static_cast<double>(added.capacity);
    }
    // Shares of the ranks' time: needed by arriving prompts, and free in steps with prompts.
    const double needed = traffic.arrivals_per_s * traffic.mean_prefill_s / static_cast<double>(ranks.size());
    const double free = least_s_ > 0 ? std::max(0.0, free_s - terms.prompt_s) / least_s_ : 0;
    const double share = free > 0 ? std::min(1.0, free / needed) : 0;
    absorbed_ = kRunsDry * share * share;
    if (releases()) {
      const double per_step = traffic.arrivals_per_s * traffic.mean_prompt_tokens * traffic.step_s;
      spare_ = std::max(0.0, 1 - per_step / capacity);
    }
    slots_short_ = std::cmp_greater(waiting.size(), free_slots_);
    left_.resize(waiting.size());
    std::iota(left_.begin(), left_.end(), 0);
    SortLeft();
  }

  PrefillDecision Plan() {
    decision_.level_s = kInfinite;
    if (releases()) {
      while (BindRound(BestRelease())) {
      }
      return std::move(decision_);
    }
    if (decodes_ == 0) {
      BindRound(kInfinite);
      return std::move(decision_);
    }
    const double floor_s = std::max(LevelOfOverdue(), LevelOfObjectives());
    const Outcome none = Compute(0);
    double most = floor_s > 0 ? -kInfinite : 0;
    size_t kept = 0;
    decision_.level_s = 0;
    for (const double level_s : Levels(floor_s)) {
      while (BindRound(std::max(level_s, least_s_))) {
      }
      const Outcome outcome = Compute(level_s);
      if (outcome.work_s <= 0 || level_s < floor_s) continue;
      if (level_s > floor_s && outcome.seconds > longest_s_) continue;
      // Of work that is computed now, ranks that run dry would have computed a part beside later decodes.
      const auto more = std::min(static_cast<double>(left_.size()), static_cast<double>(free_slots_));
      const double dry = std::max(0.0, 1 - more / ranks());
      const double excess_s =
          outcome.seconds - none.seconds - (1 - absorbed_ * dry) * outcome.work_s / ranks();
      const double net = Rent(outcome) - decodes_ * excess_s;
      if (net < most) continue;
      most = net;
      decision_.level_s = level_s;
      kept = decision_.bindings.size();
    }
    decision_.bindings.resize(kept);
    return std::move(decision_);
  }

 private:
  struct Rank {
    Rank(const Planner& planner, const PrefillRank& from)
        : view(from), waited_s(from.prompts.size(), from.first_bound_for_s) {
      own_s = Work().SecondsWithoutPrompts();
      const int64_t free_rows =
          std::max<int64_t>(0, std::max(view.cost.b0_tokens, planner.padded_rows_) - view.decodes);
      capacity = planner.releases() ? std::max<int64_t>(1, planner.settings_.step_tokens - view.decodes)
                                    : std::numeric_limits<int64_t>::max();
      free_s = view.cost.a_s_per_token * static_cast<double>(std::min(capacity, free_rows)) +
               (planner.padded_rows_ > 0 ? 0 : std::max(0.0, planner.least_s_ - own_s));
      for (const PromptLeft& prompt : view.prompts) Hold(prompt);
    }
    int64_t Rows() const { return view.decodes + std::ssize(view.prompts); }
    RankWork Work() const { return {view.cost, view.decodes, view.decode_context, view.prompts}; }
    double Seconds(const PromptLeft& prompt) const { return WholePromptSeconds(view.cost, prompt, 0); }
    void Hold(const PromptLeft& prompt) {
      held += prompt.left;
      held_s += Seconds(prompt);
    }
    void Take(const PromptLeft& prompt, double due_s, double waited) {
      view.Add(prompt, due_s);
      waited_s.push_back(waited);
      Hold(prompt);
      --view.free_slots;
    }
    int64_t Steps(int64_t more) const { return (held + more + capacity - 1) / capacity; }
    // The time that its prompts and this one add to the group's steps, beside what all ranks pay.
    double Added(const PromptLeft& more = {}) const {
      return std::max(0.0, held_s + Seconds(more) - static_cast<double>(Steps(more.left)) * free_s);
    }
    // What all ranks pay for the steps of its prompts and this one.
    double Price(const GroupTerms& terms, const PromptLeft& more = {}) const {
      const bool eager = view.decodes + std::min(held + more.left, capacity) > terms.captured_rows;
      return static_cast<double>(Steps(more.left)) * (terms.prompt_s + (eager ? terms.eager_s : 0));
    }
    // Prompt tokens that end by this time without attention.
    double Supply(double level_s) const {
      const double over_s = level_s - own_s;
      return over_s < 0 ? 0 : static_cast<double>(Work().FreeRows()) + over_s / view.cost.a_s_per_token;
    }

    PrefillRank view;
    // By prompt: seconds for which it has waited.
    std::vector<double> waited_s;
    // Its time without prompts, and the time for prompts in a step that costs the group nothing.
    double own_s = 0, free_s = 0;
    // Prompt tokens of a step if the engine fills it.
    int64_t capacity = 0;
    // Its prompts: tokens, and the time that they take.
    int64_t held = 0;
    double held_s = 0;
  };

  bool releases() const { return settings_.step_tokens > 0; }
  double ranks() const { return static_cast<double>(ranks_.size()); }

  // --- what an extent costs and gains ---

  struct Outcome {
    // Time of the step; of all prompts computed, on all ranks; waits in proportion to what is computed.
    double seconds = 0, work_s = 0, waited_s = 0, prompts = 0;
  };

  Outcome Compute(double level_s) {
    Outcome outcome;
    loads_.clear();
    for (const Rank& rank : ranks_) {
      BatchLoad& load = loads_.emplace_back(BatchLoad{rank.view.decodes, 0, rank.view.decode_context});
      int64_t tokens = TokensWithin(rank.Work(), level_s);
      for (size_t i = 0; tokens > 0; ++i) {
        const PromptLeft& prompt = rank.view.prompts[i];
        const int64_t part = std::min(tokens, prompt.left);
        tokens -= part;
        load.AddPrefill(part, prompt.done);
        const double share = static_cast<double>(part) / static_cast<double>(prompt.left + prompt.done);
        outcome.prompts += share;
        outcome.waited_s += share * rank.waited_s[i];
      }
      outcome.work_s += rank.view.cost.a_s_per_token * static_cast<double>(load.tokens - rank.view.decodes) +
                        rank.view.cost.k1_s_per_pair * load.prefill_pairs;
    }
    const StepMode mode = terms_.ModeOf(loads_);
    for (size_t g = 0; g < ranks_.size(); ++g) {
      const GroupCost cost{ranks_[g].view.cost, terms_};
      outcome.seconds = std::max(outcome.seconds, cost.RankSeconds(loads_[g], mode));
    }
    return outcome;
  }

  // What these prompts have waited or, if that is more, will have when the next one arrives: too late.
  double Rent(const Outcome& outcome) const {
    if (traffic_.arrivals_per_s <= 0) return outcome.waited_s;
    return std::max(outcome.waited_s,
                    outcome.prompts * (outcome.prompts + 1) / (2 * traffic_.arrivals_per_s));
  }

  // Only the time that company took: without room there was no choice.
  double Held(int32_t i) const { return Waited(i) - waiting_[i].crowded_s; }
  double Waited(int32_t i) const { return waiting_[i].waited_s + traffic_.step_s; }
  double HeldAtMost(double cost_s) const { return kHeldSteps * traffic_.step_s + kHeldTimes * cost_s; }

  // --- levels ---

  std::vector<double> Levels(double floor_s) const {
    double low_s = least_s_;
    // Padded ranks have no free time below the slowest rank's, only rows.
    for (const Rank& rank : ranks_) low_s = padded_rows_ > 0 ? std::min(low_s, rank.own_s) : low_s;
    constexpr int kBelow = kLevels / 4, kAbove = kLevels - kBelow;
    std::vector<double> levels;
    for (int i = 0; i < kBelow && low_s < least_s_; ++i) {
      levels.push_back(low_s + (least_s_ - low_s) * i / kBelow);
    }
    for (int i = 0; i <= kAbove; ++i) {
      levels.push_back(least_s_ + MostRise() * (std::pow(kRange, 1.0 * i / kAbove) - 1) / (kRange - 1));
    }
    if (floor_s > 0) levels.insert(std::upper_bound(levels.begin(), levels.end(), floor_s), floor_s);
    return levels;
  }
  double MostRise() const { return kMostRise * std::max(traffic_.mean_prefill_s, least_s_); }

  // The level at which ranks compute a mean prompt's tokens of an overdue first prompt, or can start one.
  double LevelOfOverdue() const {
    double level_s = 0;
    const auto add = [&](const Rank& rank, double from_s, PromptLeft prompt, double held_s,
                         bool slots_short) {
      const double cost_s = rank.Seconds({prompt.left + prompt.done, 0}) + terms_.prompt_s;
      if (held_s <= (slots_short ? decodes_ * cost_s : HeldAtMost(cost_s))) return;
      prompt.left = std::min(prompt.left, static_cast<int64_t>(traffic_.mean_prompt_tokens) + 1);
      level_s =
          std::max(level_s, from_s + WholePromptSeconds(rank.view.cost, prompt, rank.Work().FreeRows()));
    };
    for (const Rank& rank : ranks_) {
      if (rank.held > 0) add(rank, rank.own_s, rank.view.prompts[0], rank.view.first_bound_for_s, false);
    }
    for (const int32_t i : left_) add(ranks_[0], least_s_, waiting_[i].Least(), Waited(i), slots_short_);
    return std::min(level_s, least_s_ + MostRise());
  }

  // The level that meets every objective that a permitted level can meet, in steps that prompts' price
  // lengthens.
  double LevelOfObjectives() {
    const double price_s = terms_.prompt_s, most_s = (1 + kMostRiseForObjectives) * least_s_;
    double level_s = 0;
    const auto meet = [&](double other_s, double work_s, double left_s) {
      if (left_s == kNoObjective) return;
      const double needed_s = LevelWithin(other_s + price_s, least_s_ + price_s, work_s, left_s) - price_s;
      if (needed_s > most_s) return;
      level_s = std::max({level_s, needed_s, least_s_});
      longest_s_ = std::min(longest_s_, left_s / kStepsToObjective);
    };
    BatchCost mean{.a_s_per_token = 0};
    double mean_other_s = 0, before_s = 0;
    for (const Rank& rank : ranks_) {
      const BatchCost& cost = rank.view.cost;
      const double other_s = rank.own_s - cost.a_s_per_token * static_cast<double>(rank.Work().FreeRows());
      double work_s = 0;
      for (size_t i = 0; i < rank.view.prompts.size(); ++i) {
        work_s += rank.Seconds(rank.view.prompts[i]);
        if (i < rank.view.due_s.size()) meet(other_s, work_s, rank.view.due_s[i]);
      }
      mean_other_s += other_s / ranks();
      before_s += work_s / ranks();
      mean.a_s_per_token += cost.a_s_per_token / ranks();
      mean.k1_s_per_pair += cost.k1_s_per_pair / ranks();
    }
    for (size_t next = 0; next < left_.size() && std::cmp_less(next, free_slots_); ++next) {
      const WaitingPrompt& prompt = waiting_[left_[next]];
      const double own_s = WholePromptSeconds(mean, prompt.Least(), 0);
      meet(mean_other_s, before_s + own_s, prompt.due_s);
      before_s += own_s / ranks();
    }
    return level_s;
  }

  // --- releases ---

  // It pays to release the prompts that add up to this time; negative: none. Where slots are short, uneven
  // releases would lengthen the backlog, so only their cost for decodes bounds a wait.
  double BestRelease() const {
    struct Candidate {
      double added_s = 0, more_s = 0, price_s = 0;
      int32_t waiting = 0;
      auto operator<=>(const Candidate&) const = default;
    };
    double present_s = 0, filled_s = 0, released_s = 0, price_s = 0, overdue_s = -1;
    for (const Rank& rank : ranks_) {
      present_s = std::max(present_s, rank.Added());
      filled_s += rank.Added();
      price_s = std::max(price_s, rank.Price(terms_));
    }
    const std::vector<WorkerIndex> takers = Takers(kInfinite);
    if (takers.empty()) return -1;
    std::vector<double> takers_s;
    for (const WorkerIndex g : takers) takers_s.push_back(ranks_[g].Added());
    std::ranges::sort(takers_s);
    const WorkerIndex most_slack = Cheapest(kTypical, takers);
    std::vector<Candidate> candidates;
    for (const int32_t i : Considered(takers)) {
      const WaitingPrompt& prompt = waiting_[i];
      const WorkerIndex g = prompt.cached.empty() ? most_slack : Cheapest(prompt, takers);
      const double added_s = ranks_[g].Added(prompt.On(g));
      const double takes_s = static_cast<double>(ranks_[g].Steps(prompt.On(g).left)) * traffic_.step_s;
      const double pays_s = ranks_[g].Price(terms_, prompt.On(g));
      candidates.push_back({added_s, added_s - ranks_[g].Added(), pays_s, i});
      const double early_s = prompt.due_s - added_s - takes_s;
      const bool due = early_s >= 0 && early_s < kDueSteps * traffic_.step_s;
      const bool overdue = !slots_short_ && (due || Held(i) > HeldAtMost(added_s + pays_s));
      if (overdue) overdue_s = std::max(overdue_s, added_s);
    }
    std::sort(candidates.begin(), candidates.end());
    // What others could avoid if they came later: time of ranks without prompts, as far as budgets have room
    // then, and the price of steps.
    const auto avoidable = [&](double added_s) {
      return spare_ * std::max(0.0, added_s - (filled_s + released_s) / ranks()) + price_s;
    };
    const double before_s = avoidable(present_s);
    double best_s = -1, most = 0, below_s = 0;
    size_t released = 0, below = 0;
    Outcome outcome;
    for (const Candidate& candidate : candidates) {
      const double added_s = std::max(present_s, candidate.added_s);
      price_s = std::max(price_s, candidate.price_s);
      // As many are released as takers have room for up to the extent, those that add least first.
      for (; below < takers_s.size() && takers_s[below] < added_s; ++below) below_s += takers_s[below];
      double room_s = (static_cast<double>(below) + 1e-9) * added_s - below_s - released_s;
      for (; released < candidates.size(); ++released) {
        const Candidate& next = candidates[released];
        if (next.added_s > added_s || next.more_s > room_s) break;
        outcome.waited_s += Held(next.waiting);
        ++outcome.prompts;
        room_s -= next.more_s;
        released_s += next.more_s;
      }
      const double net = Rent(outcome) - decodes_ * (avoidable(added_s) - before_s);
      if (net < most) continue;
      most = net;
      best_s = added_s;
    }
    return std::max(best_s, overdue_s);
  }

  // The taker where the prompt would add least.
  WorkerIndex Cheapest(const WaitingPrompt& prompt, const std::vector<WorkerIndex>& takers) const {
    return *std::ranges::min_element(takers, {}, [&](WorkerIndex g) {
      return std::pair(ranks_[g].Added(prompt.On(g)), ranks_[g].Seconds(prompt.On(g)));
    });
  }

  // --- placement ---

  static double Tokens(const PromptLeft& prompt) { return static_cast<double>(prompt.left + prompt.done); }

  // Ranks that get a prompt: with a level, those with fewer tokens left than they can compute below it, since
  // until then the prompt can still go to another rank; otherwise those whose next step has room. The rank
  // with the shortest decodes comes first.
  std::vector<WorkerIndex> Takers(double extent) const {
    std::vector<WorkerIndex> takers;
    for (WorkerIndex g = 0; g < std::ssize(ranks_); ++g) {
      const Rank& rank = ranks_[static_cast<size_t>(g)];
      if (rank.view.free_slots <= 0) continue;
      const double room = releases() ? static_cast<double>(rank.capacity) - 1 : rank.Supply(extent);
      // A rank with exactly the tokens that fit would run dry.
      if (room > 0 && static_cast<double>(rank.held) < room + 1) takers.push_back(g);
    }
    return takers;
  }

  // The prompts that could get a slot, the next ones first.
  std::vector<int32_t> Considered(const std::vector<WorkerIndex>& takers) const {
    std::vector<int32_t> considered;
    for (const int32_t i : left_) {
      if (std::cmp_greater_equal(considered.size(), free_slots_)) break;
      if (!Awaits(waiting_[i], takers)) considered.push_back(i);
    }
    return considered;
  }

  // At most one more prompt for each taker; false when none got any.
  bool BindRound(double extent) {
    std::vector<WorkerIndex> takers = Takers(extent);
    if (takers.empty() || left_.empty()) return false;
    const auto fits = [&](WorkerIndex g, const WaitingPrompt& prompt) {
      return !releases() || ranks_[g].Added(prompt.On(g)) <= extent * (1 + 1e-9);
    };
    std::vector<int32_t> chosen;
    const WorkerIndex most_slack = releases() ? Cheapest(kTypical, takers) : 0;
    for (const int32_t i : Considered(takers)) {
      if (chosen.size() == takers.size()) break;
      const WaitingPrompt& prompt = waiting_[i];
      if (fits(prompt.cached.empty() || !releases() ? most_slack : Cheapest(prompt, takers), prompt)) {
        chosen.push_back(i);
      }
    }
    std::ranges::stable_sort(chosen, std::greater(), [&](int32_t i) { return waiting_[i].tokens; });
    // Padded ranks have two maxima, of rows and of contexts; for others both are one.
    const double growth = settings_.growth * traffic_.mean_output_tokens;
    std::vector<double> rows_s, own_s;
    int64_t rows = 0;
    for (const Rank& rank : ranks_) {
      const BatchCost& cost = rank.view.cost;
      double context = rank.view.decode_context + growth * static_cast<double>(rank.Rows());
      for (const PromptLeft& prompt : rank.view.prompts) context += Tokens(prompt);
      rows_s.push_back(cost.a_s_per_token * static_cast<double>(rank.Rows()));
      const double beyond_s = rows_s.back() - cost.a_s_per_token * static_cast<double>(cost.b0_tokens);
      own_s.push_back(cost.k2_s_per_token * context + (terms_.padded ? 0 : std::max(0.0, beyond_s)));
      rows += rank.Rows();
    }
    const std::vector<double> slowest = SlowestProbabilities(own_s, rows);
    const std::vector<double> fullest = terms_.padded ? SlowestProbabilities(rows_s, rows) : slowest;
    // What the decodes of one more prompt add to the group's steps.
    const auto added_s = [&](WorkerIndex g, const PromptLeft& prompt) {
      const BatchCost& cost = ranks_[g].view.cost;
      return fullest[g] * (ranks_[g].Rows() < cost.b0_tokens ? 0 : cost.a_s_per_token) +
             slowest[g] * cost.k2_s_per_token * (Tokens(prompt) + growth);
    };
    const PromptLeft mean{static_cast<int64_t>(traffic_.mean_prompt_tokens), 0};
    std::ranges::stable_sort(takers, {}, [&](WorkerIndex g) { return added_s(g, mean); });
    const size_t before = decision_.bindings.size();
    // The longest prompt goes to the rank that will be least loaded, unless caches hold parts of it.
    for (const int32_t i : chosen) {
      const WaitingPrompt& prompt = waiting_[i];
      if (takers.empty() || Awaits(prompt, takers)) continue;
      auto best = takers.end();
      double least = kInfinite;
      for (auto taker = takers.begin(); taker != takers.end(); ++taker) {
        if (!fits(*taker, prompt)) continue;
        // What ranks can compute meanwhile, and what its decodes add.
        const PromptLeft on = prompt.On(*taker);
        const double cost =
            ranks_[*taker].Seconds(on) / ranks() + traffic_.mean_output_tokens * added_s(*taker, on);
        if (cost >= least) continue;
        least = cost;
        best = taker;
        if (prompt.cached.empty()) break;
      }
      if (best == takers.end()) continue;
      decision_.bindings.push_back({i, *best});
      left_.erase(std::find(left_.begin(), left_.end(), i));
      // Waiting for a slot was not waiting for company.
      ranks_[*best].Take(prompt.On(*best), prompt.due_s, slots_short_ ? traffic_.step_s : Waited(i));
      --free_slots_;
      takers.erase(best);
    }
    return decision_.bindings.size() > before;
  }

  // Whether the prompt waits for a rank with a free slot that holds more of it than every taker: no longer
  // than a taker would compute the difference. Where slots are short, also for one without. False in an idle
  // group, where no step would end the wait.
  bool Awaits(const WaitingPrompt& prompt, absl::Span<const WorkerIndex> takers) const {
    if (prompt.cached.empty() || idle_) return false;
    double least_s = kInfinite, with_slot_s = kInfinite, taken_s = kInfinite;
    for (WorkerIndex g = 0; g < std::ssize(ranks_); ++g) {
      const double seconds = ranks_[g].Seconds(prompt.On(g));
      least_s = std::min(least_s, seconds);
      if (ranks_[g].view.free_slots > 0) with_slot_s = std::min(with_slot_s, seconds);
    }
    for (const WorkerIndex g : takers) taken_s = std::min(taken_s, ranks_[g].Seconds(prompt.On(g)));
    const double wait_s = slots_short_ && least_s < with_slot_s ? settings_.longest_wait_s : 0;
    return prompt.waited_s + traffic_.step_s < std::max(taken_s - with_slot_s, wait_s);
  }

  // As given where slots are short, otherwise by age over the root of the length.
  void SortLeft() {
    if (slots_short_) return;
    std::vector<double> urgency;
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const auto tokens = static_cast<double>(std::max<int64_t>(1, waiting_[i].Least().left));
      urgency.push_back(Waited(static_cast<int32_t>(i)) / std::sqrt(tokens));
    }
    std::ranges::stable_sort(left_, std::greater(), [&](int32_t i) { return urgency[i]; });
  }

  std::vector<Rank> ranks_;
  const absl::Span<const WaitingPrompt> waiting_;
  const PrefillTraffic& traffic_;
  const GroupTerms& terms_;
  const PrefillSettings& settings_;
  double decodes_ = 0;
  int64_t free_slots_ = 0;
  // Rows that every rank has at least; 0: ranks are not padded.
  int64_t padded_rows_ = 0;
  // The slowest rank's time without prompts; the longest step that objectives permit.
  double least_s_ = 0, longest_s_ = kInfinite;
  // Share of work that free rows of later steps would absorb; share of the budgets that arrivals leave.
  double absorbed_ = 0, spare_ = 1;
  // No rank has anything to do; more prompts wait than slots are free.
  bool idle_ = true, slots_short_ = false;
  // Indices into `waiting` that are not bound yet, the next one first.
  std::vector<int32_t> left_;
  // Scratch.
  std::vector<BatchLoad> loads_;
  PrefillDecision decision_;
};

}  // namespace

double LevelWithin(double other_s, double least_s, double work_s, double left_s) {
  constexpr double kEarlySteps = 0.5;
  double steps = left_s / least_s;
  if (other_s > 0) steps = std::min(steps, (left_s - work_s) / other_s);
  if (steps < 1) return kInfinite;
  return other_s + work_s / std::max(1.0, std::floor(steps - kEarlySteps));
}

PrefillDecision PlanPrefill(absl::Span<const PrefillRank> ranks, absl::Span<const WaitingPrompt> waiting,
                            const PrefillTraffic& traffic, const GroupTerms& terms,
                            const PrefillSettings& settings) {
  return Planner(ranks, waiting, traffic, terms, settings).Plan();
}

}  // namespace bfio::core
