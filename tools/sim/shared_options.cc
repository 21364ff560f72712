#include <algorithm>
#include <iostream>
#include <thread>

#include "nlohmann/json.hpp"
#include "router/core/lookahead/lookahead.h"
#include "tools/sim/commands.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {
namespace {

// Number of requests drawn from a profile; longer simulations repeat them.
constexpr int64_t kProfileRequests = 20'000;
// Number of rows that represent a profile.
constexpr int64_t kRowsToDrawFrom = 100'000;

absl::Status CheckOneSource(const WorkloadOptions& workload) {
  if (workload.trace.empty() || workload.profile.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("give --trace or --profile, not both");
}

void PrintDroppedRows(const Trace& trace) {
  if (trace.dropped == 0) return;
  std::cerr << trace.source << ": " << trace.dropped << " unusable rows dropped, such as "
            << absl::StrJoin(trace.dropped_examples, "; ") << "\n";
}

}  // namespace

void AddPolicySettings(OptionTable& table, SimOptions& options) {
  table.Add("seed", &options.seed,
            "seed of random policies, of drawn lengths and, above 1, of where a trace starts");
  table.Add("objective", &options.objective, "bf_io: square, paper or refill");
  table.Add("horizon", &options.horizon, Within(0, core::kMaxHorizonSteps), "H, steps of lookahead");
  table.Add("discount", &options.discount,
            "bf_io: weight of a step ahead relative to the step before it; 1 in the paper");
  table.Add(
      "wait_ratio", &options.wait_ratio,
      "bf_io_auto, where slots are short: 99th percentile of waits over that of first come, first served");
  table.Add("choices", &options.choices, Within(1, 1 << 16), "power_of_d: d, workers drawn for each request");
}

void AddRunOptions(OptionTable& table, SimOptions& options) {
  AddPolicySettings(table, options);
  table.Add("lookahead", &options.lookahead,
            "predictor of completions: see the list above; oracle gets every length");
  table.Add("window", &options.window, Within(0, 1 << 30),
            "requests from the front of the pool that a policy gets; 0: 4,096, or --reveal if that is more");
  table.Add(
      "shadow", &options.shadow,
      "policies, separated by commas, that plan for every decision without being applied; their regrets "
      "follow the table, and decision times include theirs");
  table.Add("dispatch", &options.dispatch,
            "pool: requests wait in the router; instant: each goes to a worker's queue as it comes");
  table.Add("plan_mode", &options.plan_mode, "lockstep, or pipelined: a plan takes effect a step later");
  table.Add("report_delay", &options.report_delay, "steps by which the workers' reports come late");
  table.Add("mode", &options.mode, "overload, arrivals or closed");
  table.Add("reveal", &options.reveal, "overload mode: requests are revealed until this many wait");
  table.Add("concurrency", &options.concurrency, "closed mode: requests kept waiting or running");
  table.Add("load", &options.load, "arrivals mode: the trace's arrival times are divided by this");
  table.Add("warmup", &options.warmup, Within(0, 1e9),
            "steps before counting starts; 0 when --requests is given and this is not");
  table.Add("steps", &options.steps,
            "steps counted; 0: until --requests are done, which is also meant when only --requests is given");
  table.Add("requests", &options.requests, "the run ends when so many requests are done; 0: after --steps");
  table.Add("count_drain", &options.count_drain,
            "with --requests: count the steps after the last admission too, when the group empties");
  table.Add("workers", &options.workers, "G, workers behind one barrier");
  table.Add("batch", &options.batch, "B, slots per worker");
  table.Add("kv_tokens", &options.kv_tokens, "KV tokens per worker; 0: no limit");
  table.Add("admission", &options.admission,
            "which requests may enter a worker's KV memory: none (a request reserves all that it may need), "
            "kv_feasible (while memory suffices at every future time with probability 0.99, by --lookahead; "
            "kv_feasible:confidence=P for another), protection:alpha=A (while at most the share 1 - A is in "
            "use); and, alone or joined to these with +, which requests leave the pool: wait or nested_wait "
            "(:tokens=N,most=K)");
  table.Add("max_new_tokens", &options.max_new_tokens,
            "max_new_tokens of every request; longer ones are truncated; 0: the workload's longest");
  table.Add("c", &options.cost.c_s, "step time: fixed part, seconds");
  table.Add("tl", &options.cost.tl_s_per_token, "step time: seconds per token of a worker's load");
  table.Add("prefill", &options.cost.prefill_s_per_token,
            "step time: seconds per prompt token of the requests that a worker admits");
  table.Add("overhead", &options.overhead_s,
            "seconds added to every step, for the barrier and the gap between steps");
  AddNumbers(table, "speeds", &options.speeds, Within(1e-3, 1e3),
             "speeds of the workers against an ordinary one, separated by commas, repeated over the ranks");
  table.Add("tell_speeds", &options.tell_speeds, "whether the policy gets the speeds");
  table.Add("jitter", &options.jitter,
            "standard deviation of the logarithm of a random factor on every worker's local time");
  table.Add("drift", &options.drift,
            "how loads grow: growth, constant, speculative:DRAFT:PROBABILITY, throttled:SHARE, "
            "sequence:A,B,..");
  table.Add("prediction_error", &options.prediction_error,
            "lookahead=oracle: lengths are given with an error factor between 1 - x and 1 + x");
  table.Add("hint_lead", &options.hint_lead,
            "lookahead=hint: scale of the hints, in tokens before the end of a request");
  table.Add("hint_noise", &options.hint_noise,
            "lookahead=hint: standard deviation of the logarithm of the hints");
  table.Add("dump_lp", &options.dump_lp,
            "folder that gets counted decisions, 1,000 per policy, as files that CBC, HiGHS and glpsol read");
}

void EndWithRequests(const OptionTable& table, SimOptions& options) {
  if (options.requests == 0) return;
  if (!table.given("warmup")) options.warmup = 0;
  if (!table.given("steps")) options.steps = 0;
}

void AddRows(OptionTable& table, WorkloadOptions& workload) {
  table.Add("trace", &workload.trace, "trace file (Azure, BurstGPT, Mooncake or generic columns)");
  table.Add(
      "profile", &workload.profile,
      "built-in workload instead of a trace; without either conversation, or lognormal lengths for admit");
}

absl::StatusOr<Trace> ReadRows(const WorkloadOptions& workload) {
  BFIO_RETURN_IF_ERROR(CheckOneSource(workload));
  if (!workload.trace.empty()) return ReadTrace(workload.trace);
  if (!workload.profile.empty()) return SampleProfile(workload.profile, kRowsToDrawFrom, 1);
  return Trace{};
}

void AddWorkload(OptionTable& table, WorkloadOptions& workload) {
  AddRows(table, workload);
  table.AddChoice(
      "draw", &workload.with_replacement,
      std::vector<std::pair<std::string, bool>>{{"order", false}, {"replacement", true}},
      "order: a trace's rows one after the other, wrapping round; replacement: rows drawn at random");
}

absl::StatusOr<Trace> ReadWorkload(const WorkloadOptions& workload, uint64_t seed, int64_t requests) {
  BFIO_RETURN_IF_ERROR(CheckOneSource(workload));
  const int64_t drawn = requests > 0 ? requests : kProfileRequests;
  if (workload.trace.empty()) {
    return SampleProfile(workload.profile.empty() ? "conversation" : workload.profile, drawn, seed);
  }
  BFIO_ASSIGN_OR_RETURN(const Trace trace, ReadTrace(workload.trace));
  PrintDroppedRows(trace);
  return workload.with_replacement ? DrawWithReplacement(trace, drawn, seed) : Rotated(trace, seed);
}

void AddThreads(OptionTable& table, int32_t& threads) {
  table.Add("threads", &threads, Within(0, 4096), "threads that share the runs, 0 for one per processor");
}

int32_t NumThreads(int32_t threads) {
  return threads > 0 ? threads : std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

void AddJson(OptionTable& table, bool& json) {
  table.Add("json", &json, "JSON on standard output instead of tables; one object per run");
}

void PrintJson(const nlohmann::ordered_json& json) {
  std::cout << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

}  // namespace bfio::sim
