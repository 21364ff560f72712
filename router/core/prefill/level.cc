#include "router/core/prefill/level.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace bfio::core {
namespace {

constexpr int kHalvings = 40;
// Keeps the sharing of a prompt's first tokens finite, since they attend to almost nothing.
constexpr double kLeastAttention = 1e-3;

struct Filled {
  int64_t tokens = 0;
  double sharing = 0;
  // True: every rank computes its own_tokens.
  bool own = true;
};

Filled FillTo(absl::Span<const RankWork> ranks, absl::Span<const int64_t> own_tokens, double level_s) {
  Filled filled;
  for (size_t g = 0; g < ranks.size(); ++g) {
    const RankWork& rank = ranks[g];
    if (rank.prompts.empty()) continue;
    const int64_t tokens = TokensWithin(rank, level_s);
    filled.tokens += tokens;
    filled.sharing += SharingAt(rank, level_s);
    if (!own_tokens.empty() && tokens < own_tokens[g]) filled.own = false;
  }
  return filled;
}

// The level at which every rank has computed all its prompts.
double LevelOfEverything(absl::Span<const RankWork> ranks, double least_s) {
  double level = least_s;
  for (const RankWork& rank : ranks) {
    double seconds = rank.SecondsWithoutPrompts();
    int64_t free = rank.FreeRows();
    for (const PromptLeft& prompt : rank.prompts) {
      seconds += WholePromptSeconds(rank.cost, prompt, free);
      free = std::max<int64_t>(0, free - prompt.left);
    }
    level = std::max(level, seconds);
  }
  return level;
}

}  // namespace

double SharingAt(const RankWork& rank, double level_s) {
  double left_s = level_s - rank.SecondsWithoutPrompts();
  if (left_s < 0) return 0;
  int64_t free = rank.FreeRows();
  for (const PromptLeft& prompt : rank.prompts) {
    const double whole_s = WholePromptSeconds(rank.cost, prompt, free);
    // Because of rounding, all of the prompt may fit.
    const int64_t part = whole_s > left_s ? PromptPartWithin(rank.cost, prompt, free, left_s) : prompt.left;
    if (part < prompt.left) {
      if (part >= free) return 1;
      // Time of attention for the next token, relative to its cost above the knee.
      const double attention =
          rank.cost.k1_s_per_pair * static_cast<double>(prompt.done + part) / rank.cost.a_s_per_token;
      return (1 + attention) / std::max(kLeastAttention, attention);
    }
    left_s = std::max(0.0, left_s - whole_s);
    free = std::max<int64_t>(0, free - prompt.left);
  }
  return 0;
}

double LevelWithin(double other_s, double least_s, double work_s, double left_s) {
  constexpr double kEarlySteps = 0.5;
  double steps = left_s / least_s;
  if (other_s > 0) steps = std::min(steps, (left_s - work_s) / other_s);
  if (steps < 1) return std::numeric_limits<double>::infinity();
  return other_s + work_s / std::max(1.0, std::floor(steps - kEarlySteps));
}

Level FillLevel(absl::Span<const RankWork> ranks, const LevelTerms& terms) {
  const auto enough = [&](const Filled& filled) {
    if (filled.sharing >= terms.paying_sharing) return false;
    if (filled.sharing < terms.least_sharing) return true;
    return filled.own && static_cast<double>(filled.tokens) >= terms.wanted_tokens;
  };
  const double least_s = terms.least_s;
  const Filled for_nothing = FillTo(ranks, terms.own_tokens, least_s);
  if (enough(for_nothing)) return {least_s, for_nothing.tokens};
  double low = least_s, high = LevelOfEverything(ranks, least_s);
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (enough(FillTo(ranks, terms.own_tokens, middle)) ? high : low) = middle;
  }
  return {high, FillTo(ranks, terms.own_tokens, high).tokens};
}

}  // namespace bfio::core
