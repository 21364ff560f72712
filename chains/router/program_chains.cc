// The flags of chains, and the pool of servers as a service of the router.
#include "router/app/program_chains.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "chains/core/server_pool.h"
#include "chains/router/chain_service.h"

ABSL_FLAG(
    uint32_t, chain_servers, 0,
    "servers with parts of a model (bfio_worker --pipeline_listen) that the first composition of chains "
    "waits for; 0: no chains");
ABSL_FLAG(uint32_t, chain_slots, 8,
          "requests at a time for which chains keep room; fewer where the servers' memory is short");
ABSL_FLAG(uint32_t, chain_sequence_tokens, 2048,
          "chains: largest prompt + output of one request, in tokens: what a slot's room is");
ABSL_FLAG(
    std::string, chain_job, "512:128",
    "INPUT:OUTPUT, tokens of a mean request: what chains are composed for where servers differ in speed");
ABSL_FLAG(std::string, chain_plan, "",
          "folder for pool.json and model.json, the servers as they have measured themselves, as bfio_plan "
          "reads them; written anew with every composition. Empty: none");

namespace bfio::router {
namespace {

absl::Status ReadJob(ChainOptions& chains) {
  const std::string flag = absl::GetFlag(FLAGS_chain_job);
  const std::vector<std::string> parts = absl::StrSplit(flag, ':');
  int64_t tokens[2] = {};
  bool good = parts.size() == 2;
  for (size_t i = 0; good && i < 2; ++i)
    good = absl::SimpleAtoi(parts[i], &tokens[i]) && tokens[i] >= 1 && tokens[i] <= 1 << 24;
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("--chain_job=", flag, ": must be INPUT:OUTPUT, tokens within 1..16777216"));
  }
  chains.job = {static_cast<double>(tokens[0]), static_cast<double>(tokens[1])};
  return absl::OkStatus();
}

}  // namespace

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
  ChainOptions chains;
  chains.servers = static_cast<int32_t>(servers);
  chains.slots = static_cast<int32_t>(slots);
  chains.sequence_tokens = tokens;
  chains.step_timeout = options.step_timeout;
  chains.use_times = options.worker_speeds;
  chains.plan_folder = absl::GetFlag(FLAGS_chain_plan);
  if (absl::Status status = ReadJob(chains); !status.ok()) return status;
  if (chains.servers > 0) options.group_kind = core::GroupKind::kIndependent;
  // Also without servers: a server that joins gets the name of the missing flag.
  options.worker_port_service = [chains](WorkerPortSetup setup) {
    return std::make_unique<ChainPoolService>(chains, std::move(setup));
  };
  return absl::OkStatus();
}

}  // namespace bfio::router
