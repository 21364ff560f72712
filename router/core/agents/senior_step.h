// Whose turn it is among the calls of agents.
//
// Purpose: the rule that keeps networks of engines stable, shared by the router's waiting pool and the
// simulator. A request of several calls (an agent: the parent of its calls) is as old as its first call, and
// its calls take turns by that age wherever they are: who has been in the system longest goes first. Age
// alone is stable and slow: it starves beginners, who then come to the next engine all at once. So a parent
// is due, and not just old: after twice the steps that its tokens need one by one. A call's turn is then due
// date less what the parent still has to do after it; the call's own length, which nobody knows, is left out.
// All that is added to the age is bounded and known when the call arrives. That is "earliest due date, first
// served", which Bramson proves stable whenever no engine gets more work than it can do ("Stability of
// earliest-due-date, first-served queueing networks", Queueing Systems 39, 2001). A rule that looks at the
// call's own place alone gives no such promise; docs/agents.md shows one that fails.
// Pure. Steps. Threads: any, no state.
#ifndef BFIO_ROUTER_CORE_AGENTS_SENIOR_STEP_H_
#define BFIO_ROUTER_CORE_AGENTS_SENIOR_STEP_H_

#include <algorithm>
#include <cstdint>

namespace bfio::core {

// Tokens of a parent count up to here. A bound there must be: stability rests on it, and it limits how far a
// client can talk itself forward or a long history can push a parent back.
inline constexpr int64_t kMaxParentTokens = 4096;

// The step from which a call counts as waiting; less is more urgent. `tokens_made`: by the calls before it.
// `tokens_after`: on the longest path of calls after it.
inline int64_t SeniorStep(int64_t parent_first_step, int64_t tokens_made, int64_t tokens_after) {
  return parent_first_step + 2 * std::clamp<int64_t>(tokens_made, 0, kMaxParentTokens) +
         std::clamp<int64_t>(tokens_after, 0, kMaxParentTokens);
}

// Steps by which a call counts as older than it is; negative: younger. Whoever says honestly that there is
// much to come is not put behind all that arrive in as many steps, and whoever claims a parent that has been
// idling about for long is not put before all that have waited as long: how far a call can be moved is
// bounded either way. Below capacity calls are due within a few hundred steps, so the second bound is not
// reached there.
inline constexpr int64_t kMaxYoungerSteps = 64;
inline constexpr int64_t kMaxOlderSteps = 1024;
inline int64_t Seniority(int64_t now, int64_t senior_step) {
  return std::clamp(now - senior_step, -kMaxYoungerSteps, kMaxOlderSteps);
}

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_AGENTS_SENIOR_STEP_H_
