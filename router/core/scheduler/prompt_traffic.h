// Recent statistics of a group's traffic, for planning prompts.
//
// Purpose: the scheduler has no clock, so rates are per step; the mean planned step time converts them to
// seconds. All values follow from events, so a replay has the same numbers. Plain data. Threads: any.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_PROMPT_TRAFFIC_H_
#define BFIO_ROUTER_CORE_SCHEDULER_PROMPT_TRAFFIC_H_

#include <cstdint>

#include "router/core/model/fading_mean.h"

namespace bfio::core {

struct PromptTraffic {
  // Weights of one planned step, one request, and one step of a prompt, in the means.
  static constexpr double kStepRateShare = 1.0 / 1024;
  static constexpr double kStepShare = 1.0 / 64;
  static constexpr double kRequestShare = 1.0 / 256;
  static constexpr double kChunkShare = 1.0 / 256;

  // Requests placed per planned step; the prompt tokens that have to be computed for them, and the squares of
  // these.
  FadingMean placed_per_step;
  FadingMean prompt_tokens;
  FadingMean prompt_squares;
  // Tokens that a request had generated when it ended.
  FadingMean output_tokens;
  // Time of a step that was planned with a level, seconds.
  FadingMean step_s;
  // Tokens of a prompt computed in one step that did not complete it.
  FadingMean chunk_tokens;

  void Planned(int64_t placed) { placed_per_step.Add(static_cast<double>(placed), kStepRateShare); }
  void PlannedSeconds(double seconds) { step_s.Add(seconds, kStepShare); }
  void Placed(int64_t prompt) {
    const auto tokens = static_cast<double>(prompt);
    prompt_tokens.Add(tokens, kRequestShare);
    prompt_squares.Add(tokens * tokens, kRequestShare);
  }
  void Ended(int64_t generated) { output_tokens.Add(static_cast<double>(generated), kRequestShare); }
  void Computed(int64_t tokens) { chunk_tokens.Add(static_cast<double>(tokens), kChunkShare); }
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_PROMPT_TRAFFIC_H_
