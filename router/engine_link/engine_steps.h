// Step reports of an engine with bfio's scheduler class (bfio/v1/engine_steps.proto), independent of the
// wire.
//
// Purpose: the boundary between the stream's service (steps/) and the ranks' accounts. Plain data and pure
// functions. Tokens; durations carry their unit. Threads: any.
#ifndef BFIO_ROUTER_ENGINE_LINK_ENGINE_STEPS_H_
#define BFIO_ROUTER_ENGINE_LINK_ENGINE_STEPS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/engine_link/engine_call.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// The name that a request has in its engine: which router sent it, over which connection of a rank, and its
// call there. Never used twice in the router's life, and no name begins with another one: SGLang aborts all
// requests whose names begin with the one that it is given.
struct EngineRequestName {
  uint64_t instance = 0;
  MemberId member = 0;
  CallNumber call = 0;

  std::string ToString() const;
  // Engines may add '-' and more of their own. Empty: another client's.
  static std::optional<EngineRequestName> Parse(absl::string_view text);

  friend bool operator==(const EngineRequestName&, const EngineRequestName&) = default;
};

// A step of a rank. Checked by the edge: no number is negative.
struct EngineStep {
  struct Prompt {
    EngineRequestName name;
    int64_t computed = 0, left = 0;
  };
  // Grows; the same again: none has ended since.
  int64_t step = 0;
  // Requests that decoded, their rows, and the tokens in their caches.
  int64_t decodes = 0, decode_tokens = 0, decode_context = 0;
  // Computed in the step, of all clients' prompts.
  int64_t prompt_tokens = 0;
  // As BatchLoad::prefill_pairs, of these.
  double prefill_pairs = 0;
  // Those of this router and others, in the order of computation.
  std::vector<Prompt> prompts;
  absl::Duration took;
  // The token budget in the engine's own configuration; only with a stream's first message.
  std::optional<int64_t> token_budget;
};

// The answer to the engine: prompt tokens of a step, or no limit.
using AnswerStep = std::function<void(std::optional<int64_t> prompt_tokens)>;

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ENGINE_LINK_ENGINE_STEPS_H_
