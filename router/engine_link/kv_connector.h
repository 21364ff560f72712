// How the KV of a prompt gets from the rank that computes it to the one that decodes, by the engines'
// connector: the parameters of both calls (vLLM's kv_transfer_params, JSON). Pure. Threads: any.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace bfio::router {

// Where a prompt is computed.
struct KvSource {
  // As the engine reports it, such as "NixlConnector".
  std::string connector;
  // The rank's name for other engines.
  std::string engine;
  // HOST:PORT of Mooncake's bootstrap server.
  std::string bootstrap;
  // Unique among the prompts of that rank.
  std::string transfer;
};

class KvConnector {
 public:
  virtual ~KvConnector() = default;
  // Parameters of the call that computes the prompt.
  virtual std::string ToCompute(const KvSource& source) const = 0;
  // Of the call that decodes, from what the first has answered; empty: there is no hand-off.
  virtual std::string ToDecode(const KvSource& source, std::string answer) const = 0;
  // KV is kept only where the first call ends at its limit of tokens, and not at a stop token.
  virtual bool keeps_at_limit_only() const { return false; }
};

// Of connectors that are not known here, the answer is passed on.
const KvConnector& KvConnectorOf(absl::string_view name);

}  // namespace bfio::router
