#include "router/core/prefill/release_planner.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "common/cost/prompt_work.h"
#include "router/core/prefill/prompt_placement.h"

namespace bfio::core {
namespace {

constexpr double kRoundingUp = 1 + 1e-9;
// Longest wait of a prompt for others: in steps, plus a multiple of its height. With 8 heights waves are less
// even: at a budget of 2,048 this increases the mean end-to-end time by 3 to 9 %, and by up to a fifth where
// prompt lengths differ much. With 32 heights the mean improves by 1 %, but first tokens of short prompts
// take half as long again. With more steps these also take longer, for a gain below 1 %.
constexpr double kHeldSteps = 2, kHeldHeights = 16;
// A prompt with an objective is released this many steps before the last one that meets it: the rank that
// takes it may change once.
constexpr double kDueSteps = 2;

// The prompt tokens that a rank has to compute.
struct Held {
  int64_t tokens = 0;
  // Time of attention to the prompts' own tokens.
  double attention_s = 0;

  void Add(const BatchCost& cost, const PromptLeft& prompt) {
    const auto left = static_cast<double>(prompt.left);
    tokens += prompt.left;
    attention_s += cost.k1_s_per_pair * left * (static_cast<double>(prompt.done) + left / 2);
  }
};

class ReleaseRank {
 public:
  ReleaseRank(const PrefillRank& rank, const ReleaseSettings& settings, double mean_output, double slowest_s)
      : cost_(rank.cost),
        capacity_(std::max<int64_t>(1, settings.step_tokens - rank.decodes)),
        free_slots_(rank.free_slots) {
    const RankWork work{rank.cost, rank.decodes, rank.decode_context, rank.prompts};
    slack_s_ = cost_.a_s_per_token * static_cast<double>(std::min(capacity_, work.FreeRows())) +
               std::max(0.0, slowest_s - work.SecondsWithoutPrompts());
    growth_ = settings.growth * mean_output;
    rows_ = rank.decodes + static_cast<int64_t>(rank.prompts.size());
    context_ = rank.decode_context + growth_ * static_cast<double>(rank.decodes);
    for (const PromptLeft& prompt : rank.prompts) {
      held_.Add(cost_, prompt);
      context_ += static_cast<double>(prompt.left + prompt.done) + growth_;
    }
  }

  // The rank's height with this prompt added.
  double AddedSeconds(const PromptLeft& more = {}) const {
    Held held = held_;
    held.Add(cost_, more);
    if (held.tokens == 0) return 0;
    return std::max(0.0, cost_.a_s_per_token * static_cast<double>(held.tokens) + held.attention_s -
                             static_cast<double>(Steps(more)) * slack_s_);
  }
  // Number of steps until the prompt is computed, if the rank gets it now.
  int64_t Steps(const PromptLeft& more) const {
    return (held_.tokens + more.left + capacity_ - 1) / capacity_;
  }
  // Time to compute the prompt.
  double Seconds(const PromptLeft& prompt) const {
    Held alone;
    alone.Add(cost_, prompt);
    return cost_.a_s_per_token * static_cast<double>(alone.tokens) + alone.attention_s;
  }
  // Decode time of a step after the rank's requests, and in the second form also that prompt's, have grown.
  double ExpectedSeconds() const { return ExpectedSeconds(rows_, context_); }
  double ExpectedSecondsWith(const PromptLeft& more) const {
    return ExpectedSeconds(rows_ + 1, context_ + ContextOf(more));
  }
  void Take(const PromptLeft& prompt) {
    held_.Add(cost_, prompt);
    --free_slots_;
    ++rows_;
    context_ += ContextOf(prompt);
  }
  int64_t capacity() const { return capacity_; }
  int64_t rows() const { return rows_; }
  int64_t free_slots() const { return free_slots_; }
  // True: the rank's next step can compute more prompt tokens than the rank holds.
  bool Takes() const { return free_slots_ > 0 && held_.tokens < capacity_; }

 private:
  double ContextOf(const PromptLeft& prompt) const {
    return static_cast<double>(prompt.left + prompt.done) + growth_;
  }
  double ExpectedSeconds(int64_t rows, double context) const {
    const auto beyond = static_cast<double>(std::max<int64_t>(0, rows - cost_.b0_tokens));
    return cost_.a_s_per_token * beyond + cost_.k2_s_per_token * context;
  }

  BatchCost cost_;
  // Prompt tokens of a step.
  int64_t capacity_;
  int64_t free_slots_;
  // Time for prompts in a step before it becomes the longest.
  double slack_s_ = 0;
  Held held_;
  double growth_ = 0;
  int64_t rows_ = 0;
  double context_ = 0;
};

class ReleasePlanner {
 public:
  ReleasePlanner(absl::Span<const PrefillRank> ranks, absl::Span<const WaitingPrompt> waiting,
                 const PrefillTraffic& traffic, const ReleaseSettings& settings)
      : waiting_(waiting),
        step_s_(traffic.step_s),
        output_(traffic.mean_output_tokens),
        arrivals_per_s_(traffic.arrivals_per_s),
        longest_wait_s_(settings.longest_wait_s) {
    double slowest_s = 0, capacity = 0;
    for (const PrefillRank& rank : ranks) {
      decodes_ += rank.decodes;
      free_slots_ += std::max<int64_t>(0, rank.free_slots);
      if (rank.decodes == 0) continue;
      slowest_s = std::max(
          slowest_s, RankWork{rank.cost, rank.decodes, rank.decode_context, {}}.SecondsWithoutPrompts());
    }
    for (const PrefillRank& rank : ranks) {
      ranks_.emplace_back(rank, settings, traffic.mean_output_tokens, slowest_s);
      capacity += static_cast<double>(ranks_.back().capacity());
    }
    idle_ = decodes_ == 0 && std::all_of(ranks.begin(), ranks.end(),
                                         [](const PrefillRank& rank) { return rank.prompts.empty(); });
    const double per_step = traffic.arrivals_per_s * traffic.mean_prompt_tokens * traffic.step_s;
    spare_ = std::max(0.0, 1 - per_step / capacity);
  }

  std::vector<PrefillDecision::Binding> Plan() {
    slots_short_ = std::cmp_greater(waiting_.size(), free_slots_);
    left_.resize(std::min(waiting_.size(), std::max(static_cast<size_t>(free_slots_), Compared())));
    std::iota(left_.begin(), left_.end(), 0);
    bound_.assign(waiting_.size(), 0);
    while (BindOnce()) {
    }
    return std::move(bindings_);
  }

 private:
  // A prompt that is not bound.
  struct Measured {
    // The height of the rank with the prompt, and the part of it that the prompt adds.
    double height_s = 0, adds_s = 0;
    int32_t waiting = 0;
    // The taker that would have the smallest height with the prompt, and the tokens that it would compute.
    WorkerIndex cheapest = 0;
    int64_t tokens = 0;
    double urgency = 0;
    auto operator<=>(const Measured&) const = default;
  };

  double Waited(int32_t i) const { return waiting_[i].waited_s + step_s_; }

  // Computes what each prompt of left_ would add to the taker with the most slack, and the resulting height.
  void MeasureLeft() {
    // A prompt that takes several steps with most budgets.
    constexpr PromptLeft kTypical = {1 << 12, 0};
    WorkerIndex best = takers_.front();
    for (const WorkerIndex g : takers_) {
      if (ranks_[g].AddedSeconds(kTypical) < ranks_[best].AddedSeconds(kTypical)) best = g;
    }
    measured_.clear();
    const size_t slots = static_cast<size_t>(free_slots_) - bindings_.size();
    for (const int32_t i : left_) {
      if (measured_.size() == slots) break;
      const WaitingPrompt& prompt = waiting_[i];
      if (Awaits(prompt)) continue;
      const WorkerIndex cheapest = prompt.cached.empty() ? best : Cheapest(prompt);
      const PromptLeft there = prompt.On(cheapest);
      const double height_s = ranks_[cheapest].AddedSeconds(there);
      const double root = std::sqrt(static_cast<double>(std::max<int64_t>(1, there.left)));
      measured_.push_back(
          {height_s, height_s - ranks_[cheapest].AddedSeconds(), i, cheapest, there.left, Waited(i) / root});
    }
    std::sort(measured_.begin(), measured_.end());
  }

  double SecondsOn(const WaitingPrompt& prompt, WorkerIndex g) const {
    return ranks_[g].Seconds(prompt.On(g));
  }
  // The least time in which a taker would compute the prompt.
  double LeastSeconds(const WaitingPrompt& prompt) const {
    double least_s = std::numeric_limits<double>::infinity();
    for (const WorkerIndex g : takers_) least_s = std::min(least_s, SecondsOn(prompt, g));
    return least_s;
  }

  // The taker that would have the smallest height with the prompt; of equal ones, the one that computes
  // least.
  WorkerIndex Cheapest(const WaitingPrompt& prompt) const {
    const auto height = [&](WorkerIndex g) {
      return std::pair(ranks_[g].AddedSeconds(prompt.On(g)), SecondsOn(prompt, g));
    };
    return *std::min_element(takers_.begin(), takers_.end(),
                             [&](WorkerIndex a, WorkerIndex b) { return height(a) < height(b); });
  }

  // Whether the prompt waits for a rank that holds more of its prefix and takes no prompt now. False in an
  // idle group, where no step would end the wait.
  bool Awaits(const WaitingPrompt& prompt) const {
    if (prompt.cached.empty() || idle_) return false;
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    double with_slot_s = kInfinite, least_s = kInfinite;
    for (WorkerIndex g = 0; g < std::ssize(ranks_); ++g) {
      const double seconds = SecondsOn(prompt, g);
      least_s = std::min(least_s, seconds);
      if (ranks_[g].free_slots() > 0) with_slot_s = std::min(with_slot_s, seconds);
    }
    const double waited_s = prompt.waited_s + step_s_;
    if (waited_s < LeastSeconds(prompt) - least_s) return true;
    return slots_short_ && least_s < with_slot_s && waited_s < longest_wait_s_;
  }

  // Whether a rank that has taken another prompt in this round, and may take this one next, holds more of its
  // prefix than the remaining takers. False when the prompt has waited longer than computing the difference
  // takes.
  bool HasMore(const WaitingPrompt& prompt, WorkerIndex rank) const {
    return !prompt.cached.empty() && std::find(takers_.begin(), takers_.end(), rank) == takers_.end() &&
           prompt.waited_s + step_s_ < LeastSeconds(prompt) - SecondsOn(prompt, rank);
  }

  // Number of prompts up to the last one of which a rank holds a part.
  size_t Compared() const {
    size_t compared = waiting_.size();
    while (compared > 0 && waiting_[compared - 1].cached.empty()) --compared;
    return compared;
  }

  // Delay of decodes by a wave of that height beyond the time of its prompts, when ranks are filled to
  // `filled_s`.
  double Unevenness(double height_s, double filled_s) const {
    const double level_s = filled_s / static_cast<double>(ranks_.size());
    return spare_ * static_cast<double>(decodes_) * std::max(0.0, height_s - level_s);
  }

  // How long so many prompts will have waited in total when the next one arrives, in the mean. 0: unknown.
  double WaitUntilNext(double prompts) const {
    return arrivals_per_s_ > 0 ? prompts * (prompts + 1) / (2 * arrivals_per_s_) : 0;
  }

  // Whether the prompt meets its objective if it is released now, and may miss it in kDueSteps steps.
  bool IsDue(const WaitingPrompt& prompt, WorkerIndex g, double height_s) const {
    if (prompt.due_s == kNoObjective) return false;
    const double spare_s =
        prompt.due_s - height_s - static_cast<double>(ranks_[g].Steps(prompt.On(g))) * step_s_;
    return spare_s >= 0 && spare_s < kDueSteps * step_s_;
  }

  double BestHeight() const {
    double present_s = 0, filled_s = 0;
    for (const ReleaseRank& rank : ranks_) {
      present_s = std::max(present_s, rank.AddedSeconds());
      filled_s += rank.AddedSeconds();
    }
    const double at_present = Unevenness(present_s, filled_s);
    double best_s = present_s, most = 0, waited_s = 0, overdue_s = 0, prompts = 0;
    for (const auto& [height_s, adds_s, i, cheapest, tokens, urgency] : measured_) {
      waited_s += Waited(i);
      filled_s += adds_s;
      ++prompts;
      if (height_s <= present_s) continue;
      if (!slots_short_ && (Waited(i) > kHeldSteps * step_s_ + kHeldHeights * height_s ||
                            IsDue(waiting_[i], cheapest, height_s))) {
        overdue_s = height_s;
        continue;
      }
      const double rent_s = std::max(waited_s, WaitUntilNext(prompts));
      const double net = rent_s - (Unevenness(height_s, filled_s) - at_present);
      if (net >= most) {
        most = net;
        best_s = height_s;
      }
    }
    return std::max(best_s, overdue_s);
  }

  // Binds one more prompt to each taker; false when none was bound.
  bool BindOnce() {
    takers_.clear();
    for (WorkerIndex g = 0; g < std::ssize(ranks_); ++g) {
      if (ranks_[g].Takes()) takers_.push_back(g);
    }
    if (takers_.empty() || left_.empty()) return false;
    MeasureLeft();
    const double height_s = BestHeight() * kRoundingUp;
    std::stable_sort(takers_.begin(), takers_.end(), [&](WorkerIndex a, WorkerIndex b) {
      return ranks_[a].ExpectedSeconds() < ranks_[b].ExpectedSeconds();
    });
    WeighRanks();
    bool bound = false;
    std::vector<Measured> wave = ByUrgency(height_s);
    // As many prompts as there are takers, the longest of them first. A remaining taker is kept for a prompt
    // that stays within the height in a later round.
    bool kept = false;
    for (size_t first = 0; first < wave.size() && !takers_.empty() && !kept;) {
      const size_t count = std::min(takers_.size(), wave.size() - first);
      const auto begin = wave.begin() + static_cast<std::ptrdiff_t>(first);
      std::stable_sort(begin, begin + static_cast<std::ptrdiff_t>(count),
                       [&](const Measured& a, const Measured& b) {
                         return waiting_[a.waiting].tokens > waiting_[b.waiting].tokens;
                       });
      for (const size_t end = first + count; first < end; ++first) {
        const WaitingPrompt& prompt = waiting_[wave[first].waiting];
        if (HasMore(prompt, wave[first].cheapest)) continue;
        const auto taker = Taker(prompt, height_s);
        if (taker == takers_.end()) {
          kept = true;
          continue;
        }
        bindings_.push_back({wave[first].waiting, *taker});
        ranks_[*taker].Take(prompt.On(*taker));
        takers_.erase(taker);
        bound_[static_cast<size_t>(wave[first].waiting)] = 1;
        bound = true;
      }
    }
    std::erase_if(left_, [&](int32_t i) { return bound_[static_cast<size_t>(i)] != 0; });
    return bound;
  }

  void WeighRanks() {
    int64_t rows = 0;
    expected_s_.clear();
    for (const ReleaseRank& rank : ranks_) {
      expected_s_.push_back(rank.ExpectedSeconds());
      rows += rank.rows();
    }
    slowest_ = SlowestProbabilities(expected_s_, rows);
  }

  // Of the takers that stay within the height, the one where the prompt costs the group least; without
  // prefixes the first one, whose decodes take least time.
  std::vector<WorkerIndex>::iterator Taker(const WaitingPrompt& prompt, double height_s) {
    auto best = takers_.end();
    double least_s = std::numeric_limits<double>::infinity();
    for (auto taker = takers_.begin(); taker != takers_.end(); ++taker) {
      const ReleaseRank& rank = ranks_[*taker];
      const PromptLeft there = prompt.On(*taker);
      if (rank.AddedSeconds(there) > height_s) continue;
      const double cost_s = PlacementCost(rank.Seconds(there), std::ssize(ranks_), output_,
                                          slowest_[static_cast<size_t>(*taker)],
                                          rank.ExpectedSecondsWith(there) - rank.ExpectedSeconds());
      if (cost_s >= least_s) continue;
      least_s = cost_s;
      best = taker;
      if (prompt.cached.empty()) break;
    }
    return best;
  }

  // The prompts that fit up to that height, the most urgent first.
  std::vector<Measured> ByUrgency(double height_s) const {
    std::vector<Measured> wave;
    for (const Measured& measured : measured_) {
      if (measured.height_s <= height_s) wave.push_back(measured);
    }
    std::sort(wave.begin(), wave.end(), [](const Measured& a, const Measured& b) {
      return a.urgency != b.urgency ? a.urgency > b.urgency : a.waiting < b.waiting;
    });
    return wave;
  }

  const absl::Span<const WaitingPrompt> waiting_;
  const double step_s_;
  // Mean output.
  const double output_;
  const double arrivals_per_s_;
  const double longest_wait_s_;
  // More prompts wait than slots are free; no rank has anything to do.
  bool slots_short_ = false, idle_ = false;
  std::vector<ReleaseRank> ranks_;
  int64_t decodes_ = 0, free_slots_ = 0;
  // Ranks that take a prompt; indices of `waiting` that are not bound.
  std::vector<WorkerIndex> takers_;
  std::vector<int32_t> left_;
  // By index of `waiting`.
  std::vector<char> bound_;
  // The prompts of left_ with their heights, the smallest first.
  std::vector<Measured> measured_;
  // By rank.
  std::vector<double> expected_s_, slowest_;
  // Share of the steps' prompt capacity that arrivals do not use.
  double spare_ = 0;
  std::vector<PrefillDecision::Binding> bindings_;
};

}  // namespace

std::vector<PrefillDecision::Binding> PlanRelease(absl::Span<const PrefillRank> ranks,
                                                  absl::Span<const WaitingPrompt> waiting,
                                                  const PrefillTraffic& traffic,
                                                  const ReleaseSettings& settings) {
  return ReleasePlanner(ranks, waiting, traffic, settings).Plan();
}

}  // namespace bfio::core
