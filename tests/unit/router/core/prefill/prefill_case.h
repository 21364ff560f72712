// Ranks and plans for tests of the planners of prompts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "router/core/prefill/prefill_planner.h"

namespace bfio::core {

// 0.1 ms per row; no row is free.
inline PrefillRank RankOf(int64_t decodes, double context, int64_t free_slots = 10,
                          std::vector<PromptLeft> prompts = {}) {
  return {.cost = {.c_s = 0.01, .a_s_per_token = 1e-4, .b0_tokens = 0, .k2_s_per_token = 1e-6},
          .decodes = decodes,
          .decode_context = context,
          .free_slots = free_slots,
          .prompts = std::move(prompts)};
}

// Borrows the rank's prompts.
inline RankWork WorkOf(const PrefillRank& rank) {
  return {rank.cost, rank.decodes, rank.decode_context, rank.prompts};
}

inline double SlowestWithoutPrompts(const std::vector<PrefillRank>& ranks) {
  double slowest = 0;
  for (const PrefillRank& rank : ranks)
    if (rank.decodes > 0) slowest = std::max(slowest, WorkOf(rank).SecondsWithoutPrompts());
  return slowest;
}

using Bindings = std::vector<PrefillDecision::Binding>;
inline std::vector<int32_t> WaitingOf(const Bindings& bindings) {
  std::vector<int32_t> indices;
  for (const auto& binding : bindings) indices.push_back(binding.waiting);
  return indices;
}
inline std::vector<int32_t> RanksOf(const Bindings& bindings) {
  std::vector<int32_t> ranks;
  for (const auto& binding : bindings) ranks.push_back(binding.rank);
  return ranks;
}

// What goes now to engines that fill their steps themselves.
struct ReleaseSettings {
  int64_t step_tokens = 2048;
  double longest_wait_s = 0;
};
inline Bindings PlanRelease(const std::vector<PrefillRank>& ranks, const std::vector<WaitingPrompt>& waiting,
                            const PrefillTraffic& traffic, const ReleaseSettings& settings,
                            const GroupTerms& terms = {}) {
  return PlanPrefill(ranks, waiting, traffic, terms, {settings.step_tokens, settings.longest_wait_s})
      .bindings;
}

// A prompt of which ranks have so many tokens cached.
inline WaitingPrompt CachedPrompt(int64_t tokens, double waited_s, const std::vector<int64_t>& cached) {
  return {tokens, waited_s, kNoObjective, 0, cached};
}

}  // namespace bfio::core
