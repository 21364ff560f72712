// How the KV of a prompt gets from the rank that computes it to the one that decodes, by the engines'
// connector: the parameters of both calls (vLLM's kv_transfer_params, JSON). Pure. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/address.h"
#include "router/requests/hand_off.h"

namespace bfio::router {

// Where a prompt is computed.
struct KvSource {
  // As the engine reports it, such as "NixlConnector".
  std::string connector;
  // The rank's name for other engines.
  std::string engine;
  // The bootstrap server of Mooncake and SGLang.
  Address bootstrap;
  // Unique among the prompts of that rank.
  std::string transfer;
  // Unique among all prompts; by its remainder SGLang finds the rank.
  int64_t room = 0;
  // The rank's number, where there are several.
  std::optional<int32_t> rank;
  // Blocks that its KV takes.
  size_t most_blocks = 0, least_blocks = 1;
  // The rank's server.
  Address server = {};
};

class KvConnector {
 public:
  virtual ~KvConnector() = default;
  // Parameters of the call that computes the prompt.
  virtual std::string ToCompute(const KvSource& source) const = 0;
  // For the call that decodes, from what the first has answered; without parameters: it hands nothing over.
  // INVALID_ARGUMENT: the answer cannot be right.
  virtual absl::StatusOr<RequestHandOff> ToDecode(const KvSource& source, std::string answer) const = 0;
  // The rank that decodes waits for the prompt, and both calls are made at once: ToDecode needs no answer.
  virtual bool in_parallel() const { return false; }
  // Ranks that decode compute no prompts themselves.
  virtual bool computes_none() const { return false; }
  // The server that decodes makes the first call itself, to the one that a header of its request names.
  virtual bool by_header() const { return false; }
  // The parameters' place in a body of OpenAI's API: members, by name and value (JSON).
  virtual std::vector<std::pair<std::string, std::string>> InBody(const std::string& parameters) const {
    return {{"kv_transfer_params", parameters}};
  }
  // An engine that refuses the call that decodes has the KV freed at once, and not after the lease.
  virtual bool frees_refused() const { return false; }
  // KV is kept only where the first call ends at its limit of tokens, and not at a stop token.
  virtual bool keeps_at_limit_only() const { return false; }
};

// Of connectors that are not known here, the answer is passed on.
const KvConnector& KvConnectorOf(absl::string_view name);

// ToDecode. UNAVAILABLE (WrongHandOff): the prompt must be computed again, elsewhere.
absl::StatusOr<HandOffPtr> HandOffFrom(const KvSource& source, std::string answer);

}  // namespace bfio::router
