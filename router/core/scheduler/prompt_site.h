// Where a prompt is computed where ranks hand prompts over (disaggregated prefill): on a rank that decodes,
// or on one that computes prompts for others. By cost: what the prompt adds to the times of all requests, its
// own included. Pure. Threads: any, no state. Units: tokens, seconds.
#pragma once

#include <cstdint>

#include "common/cost/group_time.h"
#include "common/cost/prompt_work.h"

namespace bfio::core {

// Where no cost has been fitted, in units of a token's time, which is enough to compare: a step takes as long
// as 256 tokens, which it computes beside reading the weights (150 on an A100, 300 on an H100).
inline constexpr GroupCost kAssumedCost = {
    .batch = {.c_s = 256, .a_s_per_token = 1, .b0_tokens = 256, .k1_s_per_pair = 0, .k2_s_per_token = 0}};

// A rank that could compute the prompt.
struct PromptSite {
  GroupCost cost;
  // The rank decodes; otherwise the prompt has a step of its own.
  bool decodes = true;
  // Rows of the rank's step without prompts, and prompt tokens that it computes before.
  int64_t rows = 0, pending = 0;
  // Requests that a longer step delays.
  double delayed = 0;
  // The prompt, without what the rank's cache is expected to hold.
  PromptLeft prompt;
};

// Seconds, summed over the requests.
double AddedSeconds(const PromptSite& site);

}  // namespace bfio::core
