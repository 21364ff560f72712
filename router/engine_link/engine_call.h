// One request to an engine with an API of its own, and the engine's answers. The types between the ranks
// (engine_rank.h) and the protocols of engines (engine_client.h), which convert them. Plain data; lengths in
// tokens. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/core/model/request.h"
#include "router/engine_link/kv_connector.h"
#include "router/group/worker_messages.h"
#include "router/requests/passed.h"
#include "router/requests/request.h"

namespace bfio::router {

// Numbers a call of a rank; never used twice, because a request may come back to a rank that it was on.
using CallNumber = uint64_t;

inline constexpr int32_t kMostEngineSlots = 65536;

// An engine's description of itself.
struct EngineDescription {
  // Data-parallel ranks among which the router balances, numbered from 0 in calls. The engine's reports
  // number them from `first_rank`, because other servers have the rest of `all_ranks`.
  int32_t ranks = 1;
  int32_t first_rank = 0;
  int32_t all_ranks = 1;
  // More than 1: the engine itself chooses among this many ranks, and they are described as one.
  int32_t joined_ranks = 1;
  // Per rank: requests at a time (vLLM: max_num_seqs), and tokens of its KV cache; 0: not reported.
  int32_t slots = 0;
  int64_t kv_tokens = 0;
  // Longest prompt + output.
  int64_t max_sequence_tokens = 0;
  // All token ids are below it; 0: not reported.
  uint32_t vocabulary = 0;
  // It computes prompts for other servers, which fetch the KV (vLLM: kv_role kv_producer), by this connector.
  bool hands_over = false;
  std::string kv_connector, kv_engine_id;
  // Port of its bootstrap server; 0: not reported.
  int32_t kv_bootstrap_port = 0;
  // Type of the KV cache, and tokens of its blocks; empty, 0: not reported.
  std::string kv_type;
  int32_t kv_block_tokens = 0;
  // The model's name for gateways.
  std::string model;
  // By rank: what runs there, where requests of an earlier router run on; otherwise empty.
  std::vector<EngineLoad> running;

  bool operator==(const EngineDescription&) const = default;
};

// Sets the KV tokens where they are not reported. INVALID_ARGUMENT: why the engine cannot be in a group.
absl::Status Complete(EngineDescription& description);
// What an answer lacks is unknown, not changed: loads may omit ranks or sizes.
void FillIn(const EngineDescription& before, EngineDescription& description);
// Whether one server may have given both. Sizes may change, and the loads that name ranks may come late.
bool SameServer(const EngineDescription& a, const EngineDescription& b);
// Whether prompts that one computes can be decoded by the other; what is not reported is no obstacle.
bool Pair(const EngineDescription& a, const EngineDescription& b);
// WorkerHello::model: engines of different models give one prompt different answers (group/group_key.h).
std::string ModelDigest(const EngineDescription& description);

// A request to be sent to an engine: an Assignment that owns its data.
struct EngineCall {
  core::RequestId id = 0;
  // The request as the client sent it, with the prompt; off: the prompt is in this structure.
  Passing passed;
  uint32_t passed_tokens = 0;
  // The client's prompt unless the request passes, followed by the tokens of earlier placements.
  std::vector<uint32_t> prompt;
  // Where the client gave only a length: this many tokens, of any ids.
  uint32_t synthetic_tokens = 0;
  // Tokens still to generate, at least 1.
  uint32_t max_new_tokens = 0;
  std::vector<uint32_t> stop_token_ids;
  bool ignore_eos = false;
  Sampling sampling;
  // W3C trace context of the client's call; empty: none.
  std::string traceparent;
  // As in the assignment.
  int32_t refusals = 0;
  bool hands_over = false;
  HandOffPtr hand_off;
  // Of a call that computes a prompt for another rank.
  KvSource kv_source;

  bool kv_from_elsewhere() const { return (hand_off != nullptr && !hands_over) || passed.kv_from_elsewhere; }

  int64_t prompt_tokens() const {
    return static_cast<int64_t>(prompt.size()) + synthetic_tokens + passed_tokens;
  }
};

// UNAVAILABLE when tokens were delivered before, and an engine cannot continue exactly after them.
absl::StatusOr<EngineCall> ToEngineCall(const Assignment& assignment);

// Ids for a prompt of which only the length is known; the same each time.
std::vector<uint32_t> SyntheticPrompt(uint32_t tokens, uint32_t vocabulary);

// Tokens of an output as they arrive.
struct EngineTokens {
  // One or more; may be empty for a call that passes.
  std::vector<uint32_t> ids;
  // For a call that passes: the message that has the tokens.
  PassedPtr message;
  // Tokens of the prompt that the engine had in its prefix cache, and did not compute.
  int64_t cached_prompt_tokens = 0;
};

// Why an engine has ended an output.
enum class EngineFinish : uint8_t { kLength, kStop, kAbort, kError };

struct EngineEnd {
  EngineFinish finish = EngineFinish::kLength;
  // For a call that passes: the message with the end.
  PassedPtr message;
  // A prompt computed for another rank; then there is no message, and there were no tokens.
  HandOffPtr hand_off;
};

}  // namespace bfio::router
