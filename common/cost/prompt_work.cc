#include "common/cost/prompt_work.h"

#include <cmath>

namespace bfio {
namespace {

// The non-negative root y of a y^2 + b y = c, for a, b, c >= 0; `most` if every y is a root.
double PositiveRoot(double a, double b, double c, double most) {
  if (a <= 0) return b > 0 ? c / b : most;
  return (std::sqrt(b * b + 4 * a * c) - b) / (2 * a);
}

}  // namespace

int64_t PromptPartWithin(const BatchCost& cost, const PromptLeft& prompt, int64_t free_rows, double seconds) {
  const auto done = static_cast<double>(prompt.done), most = static_cast<double>(prompt.left);
  const auto rows = static_cast<double>(free_rows);
  double part = PositiveRoot(cost.k1_s_per_pair / 2, cost.k1_s_per_pair * done, seconds, most);
  if (part > rows) {
    part = PositiveRoot(cost.k1_s_per_pair / 2, cost.k1_s_per_pair * done + cost.a_s_per_token,
                        seconds + cost.a_s_per_token * rows, most);
  }
  // Tolerance, so that a level that was computed from a number of tokens gives the same number.
  constexpr double kRounding = 1e-6;
  return static_cast<int64_t>(std::min(most, std::floor(part + kRounding)));
}

double WholePromptSeconds(const BatchCost& cost, const PromptLeft& prompt, int64_t free_rows) {
  const auto left = static_cast<double>(prompt.left);
  return cost.a_s_per_token * static_cast<double>(std::max<int64_t>(0, prompt.left - free_rows)) +
         cost.k1_s_per_pair * left * (static_cast<double>(prompt.done) + left / 2);
}

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
    const double whole_s = WholePromptSeconds(rank.cost, prompt, free);
    if (whole_s > left_s) return tokens + PromptPartWithin(rank.cost, prompt, free, left_s);
    tokens += prompt.left;
    left_s -= whole_s;
    free = std::max<int64_t>(0, free - prompt.left);
  }
  return tokens;
}

}  // namespace bfio
