#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/sim/commands.h"
#include "tools/sim/prefixes/prefix_run.h"
#include "tools/sim/prefixes/prefix_workload.h"

namespace bfio::sim {
namespace {

constexpr char kHead[] =
    "workload        G  load seed policy                |   TTFT    p50     p99 |  TPOT ms |    E2E     p99 "
    "| "
    "  req/s |  hits found | queue   max\n";

std::string Line(const PrefixRunOptions& options, const PrefixRunResult& run) {
  return absl::StrFormat(
      "%-14s %2d %5.2f %4d %-21s | %6.3f %6.3f %7.3f | %8.2f | %6.2f %7.2f | %7.2f | %4.1f%% %4.0f%% | %5.1f "
      "%5d\n",
      options.workload, options.ranks, options.load, options.seed, options.policy, run.times.ttft_s.mean,
      run.times.ttft_s.p50, run.times.ttft_s.p99, run.times.tpot_s.mean * 1e3, run.times.e2e_s.mean,
      run.times.e2e_s.p99, run.throughput_per_s, run.hit_share * 100, run.found_share * 100, run.queue_mean,
      run.queue_max);
}

}  // namespace

absl::Status RunPrefixesCommand(const ReadOptions& read) {
  PrefixRunOptions options;
  std::vector<std::string> workloads,
      policies = {"least_requests", "least_work", "vllm", "sglang_cache_aware", "dynamo_kv"};
  for (const WorkloadShape& shape : WorkloadShapes()) workloads.emplace_back(shape.name);
  std::vector<int32_t> ranks = {8};
  std::vector<double> loads = {0.5, 0.7, 0.9, 1.2};
  int32_t seeds = 1;
  bool json = false;
  OptionTable table;
  table.Add("workloads", &workloads,
            "workloads, separated by commas: none (no shared prefixes), reasoning, system_prompts, "
            "documents, chat, agents");
  table.Add("policies", &policies,
            "policies, separated by commas: those of the router, or direct_least_requests, "
            "sglang_cache_aware and dynamo_kv, with which requests queue in the engines");
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
  table.Add("budget", &options.engine.token_budget, Within(1, 1e9),
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
  if (!json) std::cout << kHead << std::flush;
  for (const std::string& workload : workloads) {
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
            if (json) {
              PrintJson(PrefixRunJson(options, run));
            } else {
              std::cout << Line(options, run) << std::flush;
            }
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
