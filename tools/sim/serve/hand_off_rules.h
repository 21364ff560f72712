// Rules of disaggregated prefill: which prefill rank computes a request's prompt, and which rank decodes it.
// The rules of other routers are our reading of their sources (docs/research/simulator.md). Threads: a rule
// belongs to its run. Deterministic for a seed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/sim/rank/engine_run.h"

namespace bfio::sim {

struct HandOffRule {
  absl::string_view name;
  // For --help.
  absl::string_view summary;
  // Followed by the router's core: the placement policy and the lookahead of decode ranks, and whether the
  // core also decides when and where prompts begin. Empty: it is another router's rule.
  std::string policy = {}, lookahead = {};
  bool begins_prompts = false;
  // It does not hand over what a decode rank computes sooner itself.
  bool keeps_prompts = false;
  // Another router's rule. It chooses the decode rank when a request arrives, otherwise when its prompt is
  // computed; the rank with the least load or, of two random ranks, the one with less.
  bool on_arrival = true, two_choices = false;
  enum class Load {
    // Requests, until they end.
    kRequests,
    // The same; of equal ranks, that with the fewest tokens of prompts before their first tokens.
    kRequestsThenPrompts,
    // Requests from the end of their prompts to their first tokens.
    kStarting,
    // Tokens of all requests.
    kTokens,
  };
  Load load = Load::kRequests;
};
const std::vector<HandOffRule>& HandOffRules();
// Null: there is no such rule.
const HandOffRule* FindHandOffRule(absl::string_view name);

// A rule of another router. `budget`, `prefill_budget`: maximum tokens of a step of a rank.
std::unique_ptr<EngineDispatcher> MakeHandOffDispatcher(const HandOffRule& rule, int64_t budget,
                                                        int64_t prefill_budget, uint64_t seed,
                                                        ServeGroup* group,
                                                        const std::vector<ServeRequest>* requests);

}  // namespace bfio::sim
