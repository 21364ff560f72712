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
#include "common/base/status_macros.h"

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
  const auto items = std::make_shared<OptionTable>();
  const Within time(absl::ZeroDuration(), absl::Hours(24));
  items->Add("servers", &chains->servers, Within(0, core::kMostServers), "");
  items->Add("slots", &chains->slots, Within(1, 4096), "");
  items->Add("sequence_tokens", &chains->sequence_tokens, Within(2, 1 << 24), "");
  items->AddParsed("job", &chains->job, "512:128", "", ParseJob);
  items->Add("measure", &chains->use_times, "");
  items->Add("retune_after", &chains->retune_after, time, "");
  items->Add("drain_timeout", &chains->drain_timeout, time, "");
  items->Add("plan", &chains->plan_folder, "");
  table.AddParsed(
      "chains", chains.get(), "servers=0",
      "chains of servers that hold parts of a model, as servers=4,slots=8: servers is the number of servers "
      "(bfio_worker --pipeline_listen) that must join before the router composes the first chains (0: no "
      "chains). slots (8): concurrent requests per chain for which the servers reserve KV cache, lowered if "
      "their memory does not suffice. sequence_tokens (2048): largest prompt + output of a request, for "
      "which a slot reserves KV cache. job (512:128): prompt and generated tokens of a mean request, used to "
      "compose chains of servers that differ in speed. measure (true): false, all servers count as equally "
      "fast and near. retune_after (1m): recompose all chains if for this time they could not carry the "
      "demand; if they could, or nearly, but others would respond faster, after five times this time; 0: "
      "never. drain_timeout (1m): time that running requests then get to end before they continue in the "
      "new chains. plan: directory for pool.json and model.json with the measured servers, as input of "
      "bfio_plan, rewritten whenever chains are composed",
      [items, chains](const std::string& text) -> absl::StatusOr<ChainOptions> {
        BFIO_RETURN_IF_ERROR(items->ReadItems(text));
        return *chains;
      });
  return [chains](RouterOptions& options) {
    chains->step_timeout = options.step_timeout;
    if (chains->servers > 0) options.group_kind = core::GroupKind::kIndependent;
    // Registered even without servers, so that a server that joins gets an error with the missing flag.
    options.worker_port_service = [chains](WorkerPortSetup setup) {
      return std::make_unique<ChainPoolService>(*chains, std::move(setup));
    };
  };
}

}  // namespace bfio::router
