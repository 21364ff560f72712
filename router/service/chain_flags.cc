#include "router/service/chain_flags.h"

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "router/core/chain/server_pool.h"

ABSL_FLAG(
    uint32_t, chain_servers, 0,
    "servers with parts of a model (bfio_worker --pipeline_listen) that the first composition of chains "
    "waits for; 0: no chains");
ABSL_FLAG(uint32_t, chain_slots, 8,
          "requests at a time for which chains keep room; fewer where the servers' memory is short");
ABSL_FLAG(uint32_t, chain_sequence_tokens, 2048,
          "chains: largest prompt + output of one request, in tokens: what a slot's room is");

namespace bfio::router {

absl::Status ReadChainFlags(RouterOptions& options) {
  const uint32_t servers = absl::GetFlag(FLAGS_chain_servers), slots = absl::GetFlag(FLAGS_chain_slots);
  const uint32_t tokens = absl::GetFlag(FLAGS_chain_sequence_tokens);
  if (servers > core::kMostServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("--chain_servers=", servers, ": must be within 0..", core::kMostServers));
  }
  if (slots < 1 || slots > 4096) {
    return absl::InvalidArgumentError(absl::StrCat("--chain_slots=", slots, ": must be within 1..4096"));
  }
  if (tokens < 2 || tokens > 1 << 24) {
    return absl::InvalidArgumentError(
        absl::StrCat("--chain_sequence_tokens=", tokens, ": must be within 2..16777216"));
  }
  options.chains.servers = static_cast<int32_t>(servers);
  options.chains.slots = static_cast<int32_t>(slots);
  options.chains.sequence_tokens = tokens;
  options.chains.step_timeout = options.step_timeout;
  return absl::OkStatus();
}

}  // namespace bfio::router
