#include <algorithm>
#include <iostream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/json/json_reader.h"
#include "nlohmann/json.hpp"
#include "router/core/lookahead/lookahead.h"
#include "tools/sim/commands.h"
#include "tools/sim/run/workload.h"

namespace bfio::sim {

// Number of requests drawn from a profile; longer simulations repeat them.
constexpr int64_t kProfileRequests = 20'000;

void PrintDroppedRows(const Trace& trace) {
  if (trace.dropped == 0) return;
  std::cerr << trace.source << ": " << trace.dropped << " unusable rows dropped, for example "
            << absl::StrJoin(trace.dropped_examples, "; ") << "\n";
}

void AddPolicySettings(OptionTable& table, SimOptions& options) {
  table.Add("seed", &options.seed,
            "random seed of policies and drawn lengths; above 1 also of the row at which a trace starts");
  table.Add("objective", &options.objective, "bf_io: objective to minimise: square or paper");
  table.Add("horizon", &options.horizon, Within(0, core::kMaxHorizonSteps), "lookahead H in steps");
  table.Add("discount", &options.discount,
            "bf_io: weight of each predicted step relative to the one before it; 1 in the paper");
  table.Add("wait_ratio", &options.wait_ratio,
            "bf_io_auto, when slots are short: allowed 99th percentile of waits, as a multiple of that of "
            "first come, first served");
}

void AddRunOptions(OptionTable& table, SimOptions& options) {
  AddPolicySettings(table, options);
  table.Add("lookahead", &options.lookahead,
            "predictor of completions, one of the lookaheads listed above; oracle gets the true lengths");
  table.Add("window", &options.window, Within(0, 1 << 30),
            "number of waiting requests that the policy sees, from the front of the pool; 0: the larger of "
            "4,096 and --reveal");
  table.Add("dispatch", &options.dispatch,
            "pool: requests wait in the router; instant: each request goes to a worker's queue on arrival");
  table.Add("plan_mode", &options.plan_mode, "lockstep, or pipelined (a plan takes effect one step later)");
  table.Add("report_delay", &options.report_delay, Within(0, 10'000),
            "delay of the workers' reports, in steps");
  table.Add("mode", &options.mode,
            "overload (keeps --reveal requests waiting), arrivals (timed by the trace) or closed (keeps "
            "--concurrency requests in the system)");
  table.Add("reveal", &options.reveal, Within(1, 1 << 20),
            "overload mode: number of requests kept waiting in the pool");
  table.Add("concurrency", &options.concurrency, Within(0, 1 << 20),
            "closed mode: number of requests kept waiting or running");
  table.Add("time_scale|load", &options.load, Within(1e-9, 1e9),
            "arrivals mode: divides the trace's arrival times");
  table.Add("warmup", &options.warmup, Within(0, 1e9),
            "warm-up steps, which are not counted; 0 by default with --requests");
  table.Add("steps", &options.steps, Within(0, 1e9),
            "steps to count; 0 (the default with --requests): until --requests requests are complete");
  table.Add("requests", &options.requests, Within(0, 1e12),
            "ends the run when this many requests are complete; 0: ends after --steps");
  table.Add("count_drain", &options.count_drain,
            "with --requests: also counts the steps after the last admission, while the group empties");
  table.Add("slots|batch", &options.batch, Within(1, 1 << 20), "B, slots per rank (vLLM: max_num_seqs)");
  table.Add("kv_tokens", &options.kv_tokens, Within(0, 1e15),
            "KV cache capacity per worker, in tokens; 0: no limit");
  table.Add("admission", &options.admission,
            "KV admission of a worker: none (a request reserves all KV that it may need), kv_feasible "
            "(admits while memory suffices at every future time with probability 0.99, predicted by "
            "--lookahead; kv_feasible:confidence=P sets the probability) or protection:alpha=A (admits while "
            "at most the share 1 - A is in use). Also, alone or joined with +, the rule by which requests "
            "leave the pool: wait or nested_wait (:tokens=N,most=K)");
  table.Add(
      "max_new_tokens", &options.max_new_tokens, Within(0, 1e9),
      "max_new_tokens of every request; longer outputs are truncated; 0: the longest output of the workload");
  table.Add("c", &options.cost.c_s, Within(1e-9, 1e6), "step time: fixed part C, in seconds");
  table.Add("tl", &options.cost.tl_s_per_token, Within(0, 1e6),
            "step time: t_l, seconds per resident KV token of a worker");
  table.Add("prefill", &options.cost.prefill_s_per_token, Within(0, 1e6),
            "step time: seconds per prompt token of the requests that a worker admits");
  table.Add("overhead", &options.overhead_s, Within(0, 1e6),
            "seconds added to every step for the barrier and the gap between steps");
  AddNumbers(
      table, "speeds", &options.speeds, Within(1e-3, 1e3),
      "relative speeds of the workers (1: nominal), separated by commas; repeated if there are more workers");
  table.Add("tell_speeds", &options.tell_speeds, "the policy plans with the workers' speeds");
  table.Add("jitter", &options.jitter, Within(0, 10),
            "standard deviation of the logarithm of a random factor on each worker's local time");
  table.Add("drift", &options.drift,
            "how a request's load grows: growth (one token per step), constant, "
            "speculative:DRAFT:PROBABILITY, throttled:SHARE, "
            "sequence:A,B,..");
  table.Add("prediction_error", &options.prediction_error, Within(0, 1),
            "--lookahead=oracle: x, lengths get a random error factor between 1 - x and 1 + x");
  table.Add("hint_lead", &options.hint_lead, Within(1e-3, 1e6),
            "--lookahead=hint: scale of the hints, in tokens before the end of a request");
  table.Add("hint_noise", &options.hint_noise, Within(0, 100),
            "--lookahead=hint: standard deviation of the logarithm of the hints");
}

void EndWithRequests(const OptionTable& table, SimOptions& options) {
  if (options.requests == 0) return;
  if (!table.given("warmup")) options.warmup = 0;
  if (!table.given("steps")) options.steps = 0;
}

void AddWorkload(OptionTable& table, WorkloadOptions& workload, absl::string_view otherwise) {
  table.Add("trace", &workload.trace, "trace file (Azure, BurstGPT, Mooncake or generic columns)");
  table.Add("profile", &workload.profile,
            absl::StrCat("built-in workload instead of a trace; if neither is given, ", otherwise));
  table.AddChoice("draw", &workload.with_replacement,
                  std::vector<std::pair<std::string, bool>>{{"order", false}, {"replacement", true}},
                  "order: rows of the trace in order, repeated from the start at its end; replacement: rows "
                  "drawn at random with replacement");
}

absl::StatusOr<Trace> ReadWorkload(const WorkloadOptions& workload, uint64_t seed, int64_t requests) {
  if (!workload.trace.empty() && !workload.profile.empty())
    return absl::InvalidArgumentError("--trace and --profile cannot be used together");
  const int64_t drawn = requests > 0 ? requests : kProfileRequests;
  if (workload.trace.empty()) {
    return SampleProfile(workload.profile.empty() ? "conversation" : workload.profile, drawn, seed);
  }
  BFIO_ASSIGN_OR_RETURN(const Trace trace, ReadTrace(workload.trace));
  PrintDroppedRows(trace);
  return workload.with_replacement ? DrawWithReplacement(trace, drawn, seed) : Rotated(trace, seed);
}

void AddThreads(OptionTable& table, int32_t& threads) {
  table.Add("threads", &threads, Within(0, 4096), "threads that share the runs; 0: one per processor");
}

int32_t NumThreads(int32_t threads) {
  return threads > 0 ? threads : std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

void AddJson(OptionTable& table, bool& json) {
  table.Add("json", &json, "prints JSON instead of tables, one object per run");
}

void PrintJson(const nlohmann::ordered_json& json) {
  std::cout << JsonText(json) << std::endl;
}

void PrintResult(const nlohmann::ordered_json& result, bool as_json) {
  if (as_json) return PrintJson(result);
  for (const auto& [key, value] : result.items()) {
    std::cout << absl::StrFormat("%-26s ", key);
    if (value.is_string()) {
      std::cout << value.get<std::string>() << "\n";
    } else {
      PrintJson(value);
    }
  }
  std::cout.flush();
}

namespace {

struct Column {
  std::string key;
  // Of its values.
  absl::string_view format;
  double factor = 1;
};

void PrintCells(absl::string_view columns, const std::function<std::string(const Column&)>& cell) {
  std::string line;
  for (const absl::string_view text : absl::StrSplit(columns, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
    const double factor = absl::EndsWith(text, "%") ? 100 : absl::EndsWith(text, "m") ? 1e3 : 1;
    double width = 0;
    (void)absl::SimpleAtod(parts.second.substr(0, parts.second.find_first_of("%m")), &width);
    // Heads of scaled values are up to two characters longer.
    const int least = static_cast<int>(parts.first.size()) + (factor == 1 ? 0 : 2);
    absl::StrAppendFormat(
        &line, "%*s  ",
        width < 0 ? std::min(-least, static_cast<int>(width)) : std::max(least, static_cast<int>(width)),
        cell({parts.first, parts.second, factor}));
  }
  std::cout << line << std::endl;
}

}  // namespace

void PrintHead(absl::string_view columns) {
  PrintCells(columns, [](const Column& column) {
    return column.factor == 1e3 ? absl::StrReplaceAll(column.key, {{"_s_", "_ms_"}})
           : column.factor == 1 ? column.key
                                : absl::StrCat(column.key, "_%");
  });
}

void PrintRow(absl::string_view columns, const nlohmann::ordered_json& result) {
  PrintCells(columns, [&](const Column& column) -> std::string {
    const auto value = result.find(column.key);
    if (value == result.end()) return "-";
    if (!value->is_number()) return value->is_string() ? value->get<std::string>() : value->dump();
    const size_t point = column.format.find('.');
    const int digits = point == absl::string_view::npos ? 0 : column.format[point + 1] - '0';
    return absl::StrFormat("%.*f", digits, column.factor * value->get<double>());
  });
}

}  // namespace bfio::sim
