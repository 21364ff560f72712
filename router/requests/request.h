// A client's request inside the router, independent of its protocol. The domain types that the edges convert
// to and from. router/frontend makes a ClientRequest from a wire message after checking every field;
// router/requests keeps it; router/worker_link writes it to a worker. Plain data. Lengths are in tokens.
// Threads: any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "router/core/model/request.h"
#include "router/requests/hand_off.h"
#include "router/requests/logprobs.h"
#include "router/requests/passed.h"

namespace bfio::router {

// Sampling parameters. Unset means the engine's default, except for the temperature.
struct Sampling {
  // Unset: 0, greedy.
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<uint32_t> top_k;
  std::optional<uint64_t> seed;
  // Set: each token comes with its log-probability and those of this many of the most likely tokens.
  std::optional<uint32_t> logprobs;
};

struct ClientRequest {
  // The client's name of its call, unique among its tenant's live calls. The outputs of a call share it.
  std::string request_id;
  // Which output of its call it is.
  uint32_t output = 0;
  std::string tenant;
  // Token ids of the prompt; empty when the client gave only its length, and where the request passes.
  std::vector<uint32_t> prompt;
  // At least 1, except in a bare resume; equals prompt.size() where ids were given. An estimate for a text
  // that passes.
  uint32_t prompt_tokens = 0;
  // Of the prompt's token ids, where they are all of it; otherwise 0.
  uint32_t largest_id = 0;
  // The prompt's blocks, where the workers have prefix caches and equal tokens are enough to share KV. All
  // outputs of a call share this object.
  core::PrefixBlocks prefix;
  uint32_t max_new_tokens = 0;
  // The client has set no limit: max_new_tokens is as much as the workers accept.
  bool max_new_tokens_unset = false;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  // Where the request passes, only the seed is known here.
  Sampling sampling;
  // For engines that speak the client's protocol.
  Passing passed;
  // A gateway has had the prompt computed by another engine.
  HandOffPtr hand_off;
  int32_t priority = 0;
  // The client's protocol has no priority: it is 0, or its tenant's largest where that is lower.
  bool priority_unset = false;
  std::optional<uint32_t> predicted_output_tokens;
  std::optional<absl::Duration> ttft_objective;

  // The only rank that may run it, counted over all groups (RankLoad::rank in router/frontend); unset: any.
  std::optional<uint32_t> rank;

  // A stream that breaks may be resumed. `resume_token` is the client's own secret.
  bool resumable = false;
  std::string resume_token;
  // Set when the client resumes a stream: the index of the first token that it still needs. `received`: the
  // tokens that it has, in case the request has to start again.
  std::optional<uint32_t> resume_from;
  std::vector<uint32_t> received;
  // The edge has verified that a router accepted this request before (resume_ticket).
  bool resume_proven = false;
  // Digest of the model that generated the client's tokens, verified in the same way; empty: unknown.
  std::string model;

  // Set for a call of an agent (docs/design/agents.md); empty: not a call.
  std::string parent_id;
  std::optional<uint32_t> stage;
  std::optional<uint32_t> remaining_tokens;
  std::optional<absl::Duration> parent_timeout;

  bool has_prompt() const { return prompt_tokens > 0; }
  bool has_prompt_ids() const { return !prompt.empty(); }
  int64_t prompt_bytes() const {
    return int64_t{4} * static_cast<int64_t>(prompt.size()) + (passed.message ? passed.message->bytes() : 0) +
           (hand_off ? static_cast<int64_t>(hand_off->parameters.size()) : 0) +
           (prefix ? static_cast<int64_t>(8 * prefix->size()) : 0);
  }
};

inline uint32_t LargestOf(absl::Span<const uint32_t> ids) {
  return ids.empty() ? 0 : *std::max_element(ids.begin(), ids.end());
}

// The request of one output of a call, given that of the first: the same but for the seed. A hand-off can be
// used once.
inline ClientRequest OutputOf(const ClientRequest& first, uint32_t output) {
  ClientRequest request = first;
  request.output = output;
  if (output > 0) request.hand_off = nullptr;
  if (request.sampling.seed) *request.sampling.seed += output;
  return request;
}

// The request_id, followed by the output's number for all outputs but the first: for logs, and wherever the
// outputs of a call need different names.
inline std::string OutputName(const ClientRequest& request) {
  return request.output == 0 ? request.request_id : absl::StrCat(request.request_id, "/", request.output);
}

// With temperature 0 the next token follows from the tokens before it.
inline bool IsGreedy(const Sampling& sampling) {
  return sampling.temperature.value_or(0) == 0 || sampling.top_k == 1u;
}

// Whether another engine can continue a request after the tokens that have arrived, with tokens that the
// first engine might have generated. An engine's random stream begins with its call, so a continuation does
// not match the request's seed. Without a seed any continuation is valid.
inline bool EngineContinues(const ClientRequest& request) {
  if (request.passed.on) return request.passed.continues;
  return !request.sampling.seed || IsGreedy(request.sampling);
}

enum class FinishReason : uint8_t { kLength, kStop, kAbort };

// The final message for a client.
struct Finish {
  FinishReason reason = FinishReason::kLength;
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  absl::Duration queue;
  std::optional<absl::Duration> time_to_first_token;
  absl::Duration end_to_end;
  int64_t wait_steps = 0;
  // The rank it ran on last.
  std::optional<uint32_t> rank;
};

// The assignment of a request to a worker. Borrows from the request's record: valid while the command that
// carries it is carried out.
struct Assignment {
  core::RequestId id = 0;
  const ClientRequest* request = nullptr;
  // Tokens delivered before this placement. Where the prompt's ids are known, they are now part of the
  // prompt.
  const std::vector<uint32_t>* history = nullptr;
  // The log-probabilities of `history`; null unless the request is resumable and has log-probabilities.
  const Logprobs* history_logprobs = nullptr;
  // Index of the first token of this placement: the number of tokens generated before it.
  uint32_t first_index = 0;
  // Seed of the request's sampling; the same for every placement.
  uint64_t seed = 0;
  // W3C trace context; empty: none.
  const std::string* traceparent = nullptr;
  // The worker may start the request without reserving all KV tokens that it may need.
  bool kv_on_demand = false;
  // Workers that have refused it, one after the other.
  int32_t refusals = 0;
  // Steps that it counts as waiting, the seniority of an agent's call included.
  int64_t waited_steps = 0;
  // Only its prompt is computed, for another rank; or its prompt has been computed by another one.
  bool hands_over = false;
  HandOffPtr hand_off;
};

// A request that is active on a worker.
struct HeldActive {
  core::RequestId id = 0;
  int64_t kv_tokens = 0;
  // Tokens generated in its present placement.
  uint32_t generated_tokens = 0;
};

// A request that a worker holds for an earlier router, as the worker announces it.
struct HeldRequest {
  core::RequestId id = 0;
  // As the client sent it: the prompt does not include delivered tokens.
  ClientRequest request;
  // All tokens of the request, from index 0.
  std::vector<uint32_t> tokens;
  // The log-probabilities of `tokens`; empty for requests without log-probabilities.
  Logprobs logprobs;
  // Index of the first token of the placement on that worker.
  uint32_t first_index = 0;
  std::optional<FinishReason> ended;
  // Number of the model that generated the tokens; filled in by the group.
  uint32_t model = 0;
};

}  // namespace bfio::router
