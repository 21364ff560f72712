#include "router/core/prefill/release_planner.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "common/cost/prompt_work.h"

namespace bfio::core {
namespace {

constexpr double kRoundingUp = 1 + 1e-9;
// Bounds of how long a prompt waits for others: steps, and a multiple of its wave's height. Measured at a
// budget of 256 and load 0.7: with fewer heights waves are less even, which costs up to 7 % of the mean time
// end to end; with more steps first tokens of short prompts take longer for less than 1 %.
constexpr double kHeldSteps = 2, kHeldHeights = 8;

// The prompt tokens that a rank has to compute.
struct Held {
  int64_t tokens = 0;
  // Time of attention to their own tokens.
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

  // With a prompt of so many tokens more.
  double Height(int64_t more = 0) const {
    Held held = held_;
    if (more > 0) held.Add(cost_, {more, 0});
    if (held.tokens == 0) return 0;
    const int64_t steps = (held.tokens + capacity_ - 1) / capacity_;
    return std::max(0.0, cost_.a_s_per_token * static_cast<double>(held.tokens) + held.attention_s -
                             static_cast<double>(steps) * slack_s_);
  }
  // Decode time of a step when all that it holds has grown on.
  double ExpectedSeconds() const {
    const auto beyond = static_cast<double>(std::max<int64_t>(0, rows_ - cost_.b0_tokens));
    return cost_.a_s_per_token * beyond + cost_.k2_s_per_token * context_;
  }
  void Take(int64_t tokens) {
    held_.Add(cost_, {tokens, 0});
    --free_slots_;
    ++rows_;
    context_ += static_cast<double>(tokens) + growth_;
  }
  int64_t capacity() const { return capacity_; }
  // Its next step can compute more prompt tokens than it holds.
  bool Takes() const { return free_slots_ > 0 && held_.tokens < capacity_; }

 private:
  BatchCost cost_;
  // Prompt tokens of a step.
  int64_t capacity_;
  int64_t free_slots_;
  // Prompt time that a step can take without being the longest.
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
      : waiting_(waiting), step_s_(traffic.step_s) {
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
    const double per_step = traffic.arrivals_per_s * traffic.mean_prompt_tokens * traffic.step_s;
    spare_ = std::max(0.0, 1 - per_step / capacity);
  }

  std::vector<PrefillDecision::Binding> Plan() {
    left_.resize(std::min(waiting_.size(), static_cast<size_t>(free_slots_)));
    std::iota(left_.begin(), left_.end(), 0);
    while (BindOnce()) {
    }
    return std::move(bindings_);
  }

 private:
  double Waited(int32_t i) const { return waiting_[i].waited_s + step_s_; }

  // What each of left_ would add to the taker with the most slack, and how high that would be.
  void MeasureLeft() {
    // Takes several steps of most budgets.
    constexpr int64_t kTypical = 1 << 12;
    const ReleaseRank* best = &ranks_[takers_.front()];
    for (const WorkerIndex g : takers_) {
      if (ranks_[g].Height(kTypical) < best->Height(kTypical)) best = &ranks_[g];
    }
    const double before_s = best->Height();
    measured_.clear();
    for (const int32_t i : left_) {
      const double height_s = best->Height(waiting_[i].tokens);
      measured_.push_back({height_s, height_s - before_s, i});
    }
    std::sort(measured_.begin(), measured_.end());
  }

  // What a wave of that height costs decodes beyond what its prompts take, with so much in the ranks.
  double Unevenness(double height_s, double filled_s) const {
    const double level_s = filled_s / static_cast<double>(ranks_.size());
    return spare_ * static_cast<double>(decodes_) * std::max(0.0, height_s - level_s);
  }

  double BestHeight() const {
    double present_s = 0, filled_s = 0;
    for (const ReleaseRank& rank : ranks_) {
      present_s = std::max(present_s, rank.Height());
      filled_s += rank.Height();
    }
    const double at_present = Unevenness(present_s, filled_s);
    double best_s = present_s, most = 0, waited_s = 0, overdue_s = 0;
    for (const auto& [height_s, adds_s, i] : measured_) {
      waited_s += Waited(i);
      filled_s += adds_s;
      if (height_s <= present_s) continue;
      if (Waited(i) > kHeldSteps * step_s_ + kHeldHeights * height_s) {
        overdue_s = height_s;
        continue;
      }
      const double net = waited_s - (Unevenness(height_s, filled_s) - at_present);
      if (net >= most) {
        most = net;
        best_s = height_s;
      }
    }
    return std::max(best_s, overdue_s);
  }

  // Binds one prompt more to each rank that takes one; false when none was bound.
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
    bool bound = false;
    for (const int32_t i : MostUrgent(height_s)) {
      const int64_t tokens = waiting_[i].tokens;
      const auto taker = std::find_if(takers_.begin(), takers_.end(),
                                      [&](WorkerIndex g) { return ranks_[g].Height(tokens) <= height_s; });
      if (taker == takers_.end()) continue;
      bindings_.push_back({i, *taker});
      ranks_[*taker].Take(tokens);
      takers_.erase(taker);
      std::erase(left_, i);
      bound = true;
    }
    return bound;
  }

  // The most urgent prompts up to that height, one for each taker, the longest first.
  std::vector<int32_t> MostUrgent(double height_s) const {
    std::vector<int32_t> wave;
    for (const auto& [height, adds, i] : measured_) {
      if (height <= height_s) wave.push_back(i);
    }
    const auto urgency = [&](int32_t i) {
      return Waited(i) / std::sqrt(static_cast<double>(std::max<int64_t>(1, waiting_[i].tokens)));
    };
    const size_t count = std::min(takers_.size(), wave.size());
    std::partial_sort(wave.begin(), wave.begin() + static_cast<std::ptrdiff_t>(count), wave.end(),
                      [&](int32_t a, int32_t b) {
                        const double of_a = urgency(a), of_b = urgency(b);
                        return of_a != of_b ? of_a > of_b : a < b;
                      });
    wave.resize(count);
    std::stable_sort(wave.begin(), wave.end(),
                     [&](int32_t a, int32_t b) { return waiting_[a].tokens > waiting_[b].tokens; });
    return wave;
  }

  const absl::Span<const WaitingPrompt> waiting_;
  const double step_s_;
  std::vector<ReleaseRank> ranks_;
  int64_t decodes_ = 0, free_slots_ = 0;
  struct Measured {
    // The height of the rank with the prompt, and the part that the prompt adds.
    double height_s = 0, adds_s = 0;
    int32_t waiting = 0;
    auto operator<=>(const Measured&) const = default;
  };
  // Ranks that take a prompt; indices of `waiting` that are not bound.
  std::vector<WorkerIndex> takers_;
  std::vector<int32_t> left_;
  // The heights of left_, the smallest first.
  std::vector<Measured> measured_;
  // Share of the steps' capacity for prompts that arrivals do not use.
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
