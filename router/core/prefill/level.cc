#include "router/core/prefill/level.h"

#include <algorithm>
#include <cmath>

namespace bfio::core {
namespace {

constexpr int kHalvings = 40;
// So that the first tokens of a prompt, which attend to next to nothing, share a finite number of times.
constexpr double kLeastAttention = 1e-3;

// The non-negative root y of a y^2 + b y = c, for a, b, c >= 0; all of `most` where there is no bound.
double PositiveRoot(double a, double b, double c, double most) {
  if (a <= 0) return b > 0 ? c / b : most;
  return (std::sqrt(b * b + 4 * a * c) - b) / (2 * a);
}

// Tokens of a prompt that take `seconds` at most, when `free` rows are left below the knee.
int64_t PartWithin(const BatchCost& cost, const PromptLeft& prompt, int64_t free, double seconds) {
  const auto done = static_cast<double>(prompt.done), most = static_cast<double>(prompt.left);
  const auto rows = static_cast<double>(free);
  double part = PositiveRoot(cost.k1_s_per_pair / 2, cost.k1_s_per_pair * done, seconds, most);
  if (part > rows) {
    part = PositiveRoot(cost.k1_s_per_pair / 2, cost.k1_s_per_pair * done + cost.a_s_per_token,
                        seconds + cost.a_s_per_token * rows, most);
  }
  // A level that was computed from a number of tokens gives this number back.
  constexpr double kRounding = 1e-6;
  return static_cast<int64_t>(std::min(most, std::floor(part + kRounding)));
}

// What a whole prompt adds to a step in which `free` rows are left below the knee.
double WholeSeconds(const BatchCost& cost, const PromptLeft& prompt, int64_t free) {
  const auto left = static_cast<double>(prompt.left);
  return cost.a_s_per_token * static_cast<double>(std::max<int64_t>(0, prompt.left - free)) +
         cost.k1_s_per_pair * left * (static_cast<double>(prompt.done) + left / 2);
}

struct Filled {
  int64_t tokens = 0;
  double sharing = 0;
};

Filled FillTo(absl::Span<const RankWork> ranks, double level_s) {
  Filled filled;
  for (const RankWork& rank : ranks) {
    if (rank.prompts.empty()) continue;
    const int64_t tokens = TokensWithin(rank, level_s);
    filled.tokens += tokens;
    filled.sharing += SharingAt(rank, level_s);
  }
  return filled;
}

// Every rank has computed all its prompts there.
double LevelOfEverything(absl::Span<const RankWork> ranks, double least_s) {
  double level = least_s;
  for (const RankWork& rank : ranks) {
    double seconds = rank.SecondsWithoutPrompts();
    int64_t free = rank.FreeRows();
    for (const PromptLeft& prompt : rank.prompts) {
      seconds += WholeSeconds(rank.cost, prompt, free);
      free = std::max<int64_t>(0, free - prompt.left);
    }
    level = std::max(level, seconds);
  }
  return level;
}

}  // namespace

double RankWork::SecondsWithoutPrompts() const {
  const auto beyond = static_cast<double>(std::max<int64_t>(0, decodes - cost.b0_tokens));
  return cost.c_s + cost.a_s_per_token * beyond + cost.k2_s_per_token * decode_context;
}

int64_t RankWork::FreeRows() const {
  return std::max<int64_t>(0, cost.b0_tokens - decodes);
}

int64_t RankWork::PromptTokens() const {
  int64_t tokens = 0;
  for (const PromptLeft& prompt : prompts) tokens += prompt.left;
  return tokens;
}

int64_t TokensWithin(const RankWork& rank, double level_s) {
  double left_s = level_s - rank.SecondsWithoutPrompts();
  if (left_s < 0) return 0;
  int64_t tokens = 0, free = rank.FreeRows();
  for (const PromptLeft& prompt : rank.prompts) {
    const double whole_s = WholeSeconds(rank.cost, prompt, free);
    if (whole_s > left_s) return tokens + PartWithin(rank.cost, prompt, free, left_s);
    tokens += prompt.left;
    left_s -= whole_s;
    free = std::max<int64_t>(0, free - prompt.left);
  }
  return tokens;
}

double SharingAt(const RankWork& rank, double level_s) {
  double left_s = level_s - rank.SecondsWithoutPrompts();
  if (left_s < 0) return 0;
  int64_t free = rank.FreeRows();
  for (const PromptLeft& prompt : rank.prompts) {
    const double whole_s = WholeSeconds(rank.cost, prompt, free);
    // By rounding, less than all may be all.
    const int64_t part = whole_s > left_s ? PartWithin(rank.cost, prompt, free, left_s) : prompt.left;
    if (part < prompt.left) {
      if (part >= free) return 1;
      // Seconds of attention per second of the slope, for the next token.
      const double attention =
          rank.cost.k1_s_per_pair * static_cast<double>(prompt.done + part) / rank.cost.a_s_per_token;
      return (1 + attention) / std::max(kLeastAttention, attention);
    }
    left_s = std::max(0.0, left_s - whole_s);
    free = std::max<int64_t>(0, free - prompt.left);
  }
  return 0;
}

Level FillLevel(absl::Span<const RankWork> ranks, const LevelTerms& terms) {
  const auto enough = [&](const Filled& filled) {
    if (filled.sharing >= terms.paying_sharing) return false;
    return static_cast<double>(filled.tokens) >= terms.wanted_tokens || filled.sharing < terms.least_sharing;
  };
  const double least_s = terms.least_s;
  const Filled for_nothing = FillTo(ranks, least_s);
  if (enough(for_nothing)) return {least_s, for_nothing.tokens};
  double low = least_s, high = LevelOfEverything(ranks, least_s);
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (enough(FillTo(ranks, middle)) ? high : low) = middle;
  }
  return {high, FillTo(ranks, high).tokens};
}

}  // namespace bfio::core
