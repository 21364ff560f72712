// The order among the calls of agents.
//
// Purpose: the rule that keeps networks of engines stable, shared by the router's waiting pool and the
// simulator. An agent is the parent of several calls. Its age is that of its first call, and its calls
// are ordered by that age everywhere. Order by age alone is stable but slow: new agents starve, and
// then reach the next engine all at once. So the order is by due date: a parent is due after twice the
// steps that its tokens need one by one. A call's key is that due date less the parent's remaining
// work after the call. The call's own length is unknown and does not count. Everything that is added
// to the age is bounded and known when the call arrives. Bramson proves this order, "earliest due
// date, first served", stable whenever no engine gets more work than it can do ("Stability of
// earliest-due-date, first-served queueing networks", Queueing Systems 39, 2001). A rule by the call's
// own position alone has no such guarantee; docs/agents.md has an example that fails. Pure. Units:
// steps. Threads: any, no state.
#ifndef BFIO_ROUTER_CORE_AGENTS_SENIOR_STEP_H_
#define BFIO_ROUTER_CORE_AGENTS_SENIOR_STEP_H_

#include <algorithm>
#include <cstdint>

namespace bfio::core {

// Tokens of a parent count up to this bound. Stability depends on a bound. The bound also limits how far a
// client can move itself forward or a long history can push a parent back.
inline constexpr int64_t kMaxParentTokens = 4096;

// The step from which a call counts as waiting; a smaller one is more urgent. `generated_tokens`: tokens of
// the calls before it. `tokens_after`: tokens on the longest path of calls after it.
inline int64_t SeniorStep(int64_t parent_first_step, int64_t generated_tokens, int64_t tokens_after) {
  return parent_first_step + 2 * std::clamp<int64_t>(generated_tokens, 0, kMaxParentTokens) +
         std::clamp<int64_t>(tokens_after, 0, kMaxParentTokens);
}

// Steps that are added to a call's age; negative: it counts as younger. Both directions are bounded.
// kMaxYoungerSteps protects a client that announces much remaining work from waiting behind all requests that
// arrive in as many steps. kMaxOlderSteps keeps a client that names a long idle parent from passing all
// requests that have waited as long; below capacity calls are due within a few hundred steps and do not reach
// it.
inline constexpr int64_t kMaxYoungerSteps = 64;
inline constexpr int64_t kMaxOlderSteps = 1024;
inline int64_t Seniority(int64_t now, int64_t senior_step) {
  return std::clamp(now - senior_step, -kMaxYoungerSteps, kMaxOlderSteps);
}

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_AGENTS_SENIOR_STEP_H_
