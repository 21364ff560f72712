// Step reports of an engine: with bfio's scheduler class (bfio/v1/engine_steps.proto), or step metrics
// (published/step_metrics.h), independent of the wire. The boundary between the stream's service (steps/) and
// the ranks' accounts. Plain data and pure functions. Tokens; durations carry their unit. Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/cost/batch_time.h"
#include "router/engine_link/engine_call.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// The name of a request in its engine: the router that sent it, the connection of a rank that sent it, and
// its call number there. Never used twice while the router runs. No name is a prefix of another one: SGLang
// aborts all requests whose names begin with the given name.
struct EngineRequestName {
  uint64_t instance = 0;
  MemberId member = 0;
  CallNumber call = 0;

  std::string ToString() const;
  // Engines may append '-' and more. Empty: the request of another client.
  static std::optional<EngineRequestName> Parse(absl::string_view text);

  friend bool operator==(const EngineRequestName&, const EngineRequestName&) = default;
};

// A step of a rank. Checked by the edge: no number is negative or absurd.
struct EngineStep {
  struct Prompt {
    EngineRequestName name;
    int64_t computed = 0, left = 0;
  };
  // Grows; the same number again: no step has ended since.
  int64_t step = 0;
  // Requests that decoded, their rows, and the tokens in their caches.
  int64_t decodes = 0, decode_tokens = 0, decode_context = 0;
  // Prompt tokens computed in the step, for all clients; of how many prompts, where that is reported.
  int64_t prompt_tokens = 0, prefills = 0;
  // As BatchLoad::prefill_pairs, for these prompt tokens.
  double prefill_pairs = 0;
  // The prompts of this router and of others, in the order of computation.
  std::vector<Prompt> prompts;
  absl::Duration took;
  // The token budget in the engine's own configuration; only with a stream's first message.
  std::optional<int64_t> token_budget;

  BatchLoad batch() const {
    return {decode_tokens + prompt_tokens, prefill_pairs, static_cast<double>(decode_context)};
  }
};

// The answer to the engine: prompt tokens of a step, or no limit.
using AnswerStep = std::function<void(std::optional<int64_t> prompt_tokens)>;

}  // namespace bfio::router
