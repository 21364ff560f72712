// A client's request inside the router, whatever protocol it came by.
//
// Purpose: the domain types that the edges convert to and from. router/frontend makes a ClientRequest out of
// a wire message after checking every field; router/requests keeps it; router/worker_link writes it to a
// worker. Plain data without behaviour. Lengths are in tokens. Threads: any.
#ifndef BFIO_ROUTER_REQUESTS_REQUEST_H_
#define BFIO_ROUTER_REQUESTS_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "router/core/model/request.h"

namespace bfio::router {

// Unset: the engine's default.
struct Sampling {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<uint32_t> top_k;
  std::optional<uint64_t> seed;
};

struct ClientRequest {
  // Unique among its tenant's live requests.
  std::string request_id;
  std::string tenant;
  // Ids of the prompt; empty where the client gave only its length.
  std::vector<uint32_t> prompt;
  // At least 1 unless this is a bare resume; prompt.size() where ids were given.
  uint32_t prompt_tokens = 0;
  uint32_t max_new_tokens = 0;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  Sampling sampling;
  int32_t priority = 0;
  std::optional<uint32_t> predicted_output_tokens;
  std::optional<absl::Duration> ttft_objective;
  std::optional<absl::Duration> tpot_objective;

  // A stream that breaks may be taken up again. `resume_token` is the client's own secret.
  bool resumable = false;
  std::string resume_token;
  // The client takes up a stream: the index of the first token it still wants, and what it has received of a
  // request that may have to start again.
  std::optional<uint32_t> resume_from;
  std::vector<uint32_t> received;
  // The edge has seen proof that a router had accepted this very request before (resume_ticket).
  bool resume_proven = false;
  // The digest of the model that the tokens which the client has are of, by the same proof; empty: not known.
  std::string model;

  // A call of an agent (docs/agents.md); empty: none.
  std::string parent_id;
  std::optional<uint32_t> stage;
  std::optional<uint32_t> remaining_tokens;
  std::optional<absl::Duration> parent_timeout;

  bool has_prompt() const { return prompt_tokens > 0; }
  bool has_prompt_ids() const { return !prompt.empty(); }
  int64_t prompt_bytes() const { return int64_t{4} * static_cast<int64_t>(prompt.size()); }
};

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

// The assignment of a request to a worker. Borrows from the request's record: good while the
// command that carries it is carried out.
struct Assignment {
  core::RequestId id = 0;
  const ClientRequest* request = nullptr;
  // Tokens delivered before this placement. Where the prompt's ids are known they are part of the prompt now.
  const std::vector<uint32_t>* history = nullptr;
  // Index of the first token of this placement: how many were made before.
  uint32_t first_index = 0;
  // What the request draws its tokens with, wherever it is placed.
  uint64_t seed = 0;
  // Time left of ttft_objective; negative once the first token is out or the time is over.
  std::optional<absl::Duration> ttft_left;
  // W3C trace context; empty: none.
  const std::string* traceparent = nullptr;
  // The worker may begin without reserving all KV that the request may come to hold.
  bool kv_on_demand = false;
};

// A request that a worker holds.
struct HeldActive {
  core::RequestId id = 0;
  int64_t kv_tokens = 0;
  // Tokens that its present placement has made.
  uint32_t generated_tokens = 0;
};

// A request that a worker holds for an earlier router, as the worker announces it.
struct HeldRequest {
  core::RequestId id = 0;
  // As the client sent it: the prompt without what was delivered.
  ClientRequest request;
  // All of its tokens, from index 0.
  std::vector<uint32_t> tokens;
  // Index of the first token of the placement that holds it.
  uint32_t first_index = 0;
  std::optional<FinishReason> ended;
  // The number of the model that the tokens are of; the group fills it in.
  uint32_t model = 0;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_REQUEST_H_
