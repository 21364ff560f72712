#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/commands.h"
#include "tools/sim/prefixes/prefix_run.h"
#include "tools/sim/prefixes/prefix_workload.h"

namespace bfio::sim {
namespace {

constexpr char kPrefixColumns[] =
    "workload:-14 ranks:2 load:5.2 seed:4 policy:-21 ttft_s_mean:6.3 ttft_s_p50:6.3 ttft_s_p99:7.3 "
    "tpot_s_mean:8.2m e2e_s_mean:6.2 e2e_s_p99:7.2 throughput_per_s:7.2 hit_share:5.1% found_share:5% "
    "idle_share:5.1% queue_mean:5.1 queue_max:5";

}  // namespace

absl::Status RunPrefixesCommand(const ReadOptions& read) {
  PrefixRunOptions options;
  std::vector<std::string> workloads,
      policies = {"least_work", "direct_least_tokens", "smg_cache_aware", "dynamo_kv"};
  for (const WorkloadShape& shape : WorkloadShapes()) workloads.emplace_back(shape.name);
  std::vector<int32_t> ranks = {8};
  std::vector<double> loads = {0.5, 0.7, 0.9, 1.2};
  int32_t seeds = 1;
  bool json = false;
  std::vector<std::string> traces;
  OptionTable table;
  table.Add("workloads", &workloads,
            "workloads, separated by commas: none (no shared prefixes), reasoning, system_prompts, "
            "documents, chat, agents");
  table.Add("trace", &traces,
            "instead of --workloads: trace files with the hashes of their blocks (Mooncake, Bailian), or "
            "folders of agents' sessions, separated by commas. A session that does not fit a rank's KV cache "
            "ends");
  table.Add(
      "policies", &policies,
      "policies, separated by commas: those of the router, or rules of other routers, with which requests "
      "queue in the engines: direct_least_requests, direct_least_tokens, direct_vllm, direct_trtllm, "
      "smg_cache_aware, smg_least_load, router_power_of_two, router_kv_aware, llmd_prefix_load, dynamo_kv");
  AddNumbers(table, "ranks", &ranks, Within(1, 1024), "numbers of engine ranks, separated by commas");
  table.Add("barrier", &options.barrier,
            "ranks meet in a barrier after every step, as with expert parallelism");
  AddNumbers(table, "loads", &loads, Within(1e-9, 100),
             "loads, separated by commas, as shares of the capacity without cache hits");
  table.Add("seeds", &seeds, Within(1, 1000), "number of seeds, from 1 up");
  table.Add("requests", &options.requests, Within(1, 1e9),
            "approximate number of requests per run; a fifth of them is warm-up");
  table.Add("slots", &options.engine.slots, Within(1, 1 << 20), "slots per rank (max_num_seqs)");
  table.Add("kv_tokens", &options.engine.kv_tokens, Within(50'000, 1e9),
            "KV cache capacity of a rank, in tokens");
  table.Add("token_budget", &options.engine.token_budget, Within(1, 1e9),
            "token budget of a step per rank (max_num_batched_tokens)");
  table.Add(
      "ttft_objective", &options.ttft_objective_s, Within(0, 3600),
      "objective for the first token of every request, in seconds, seen by policies of the router; 0: none");
  table.Add("metered", &options.engine.metered,
            "with --barrier: engines compute prompts up to the router's level, as vLLM with bfio's scheduler "
            "class");
  table.Add("engine_caches", &options.engine.caches,
            "ranks cache the KV of prompts for later requests; the router assumes this even if it is off");
  AddJson(table, json);
  read(table);
  if (!json) PrintHead(kPrefixColumns);
  if (!traces.empty()) workloads = traces;
  for (const std::string& workload : workloads) {
    Trace trace;
    if (!traces.empty()) {
      BFIO_ASSIGN_OR_RETURN(trace, ReadTrace(workload, {.blocks = true}));
      PrintDroppedRows(trace);
      options.trace = &trace;
    }
    for (const int32_t count : ranks) {
      for (const double load : loads) {
        for (int32_t seed = 1; seed <= seeds; ++seed) {
          for (const std::string& policy : policies) {
            if (ShutdownSignal::Requested()) return absl::CancelledError("interrupted");
            options.workload = workload;
            options.ranks = count;
            options.load = load;
            options.seed = static_cast<uint64_t>(seed);
            options.policy = policy;
            BFIO_ASSIGN_OR_RETURN(const PrefixRunResult run, RunPrefixes(options));
            const nlohmann::ordered_json result = PrefixRunJson(options, run);
            json ? PrintJson(result) : PrintRow(kPrefixColumns, result);
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
