// Adds the options of chains, and the pool of servers as a service of the router.
#include "router/app/program_chains.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "chains/core/server_pool.h"
#include "chains/router/chain_service.h"

namespace bfio::router {
namespace {

using core::JobShape;

absl::StatusOr<JobShape> ParseJob(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  int64_t tokens[2] = {};
  bool good = parts.size() == 2;
  for (size_t i = 0; good && i < 2; ++i)
    good = absl::SimpleAtoi(parts[i], &tokens[i]) && tokens[i] >= 1 && tokens[i] <= 1 << 24;
  if (!good)
    return absl::InvalidArgumentError("must be INPUT:OUTPUT, each a number of tokens within 1..16777216");
  return JobShape{static_cast<double>(tokens[0]), static_cast<double>(tokens[1])};
}

}  // namespace

SetChains AddChainOptions(OptionTable& table) {
  const auto chains = std::make_shared<ChainOptions>();
  table.Add("chain_servers", &chains->servers, Within(0, core::kMostServers),
            "number of servers (bfio_worker --pipeline_listen) that must join before the router composes the "
            "first chains; 0: no chains");
  table.Add("chain_slots", &chains->slots, Within(1, 4096),
            "chains: concurrent requests per chain for which the servers reserve KV cache; lowered if their "
            "memory does not suffice");
  table.Add("chain_sequence_tokens", &chains->sequence_tokens, Within(2, 1 << 24),
            "chains: largest prompt + output of one request, in tokens; a slot reserves KV cache for it");
  table.AddParsed("chain_job", &chains->job, "512:128",
                  "chains: INPUT:OUTPUT, prompt and generated tokens of a mean request; used to compose "
                  "chains when servers differ in speed",
                  ParseJob);
  table.Add("chain_retune_after", &chains->retune_after, Within(absl::ZeroDuration(), absl::Hours(24)),
            "chains: recompose all chains if for this time they could not carry the demand. If they could, "
            "or nearly, but other chains would respond faster, recompose after five times this time. 0: "
            "never. Needs --worker_speeds=auto");
  table.Add("chain_drain_timeout", &chains->drain_timeout, Within(absl::ZeroDuration(), absl::Hours(24)),
            "chains: time that running requests get to end before chains are recomposed; requests that still "
            "run then continue in the new chains. New requests wait meanwhile");
  table.Add("chain_plan", &chains->plan_folder,
            "chains: directory for pool.json and model.json with the measured servers, as input of "
            "bfio_plan; rewritten whenever chains are composed. Empty: none");
  return [chains](RouterOptions& options) {
    chains->step_timeout = options.step_timeout;
    chains->use_times = options.worker_speeds;
    if (chains->servers > 0) options.group_kind = core::GroupKind::kIndependent;
    // Registered even without servers, so that a server that joins gets an error with the missing flag.
    options.worker_port_service = [chains](WorkerPortSetup setup) {
      return std::make_unique<ChainPoolService>(*chains, std::move(setup));
    };
  };
}

}  // namespace bfio::router
