#include "tools/sim/flags.h"

#include <algorithm>
#include <iostream>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/config/absl_flags.h"
#include "router/core/policy/policy.h"
#include "tools/sim/run/workload.h"

ABSL_FLAG(std::string, trace, "", "trace file (Azure, BurstGPT, Mooncake or generic columns)");
ABSL_FLAG(std::string, profile, "",
          "built-in workload instead of a trace; conversation when neither is given");
ABSL_FLAG(std::string, draw, "order",
          "order: a trace's rows one after the other, wrapping round; replacement: rows drawn at random");
ABSL_FLAG(std::string, policy, "bf_io_auto", "policy, or several separated by commas");
ABSL_FLAG(std::string, objective, "square", "bf_io: square, paper or refill");
ABSL_FLAG(uint32_t, workers, 16, "G, workers behind one barrier");
ABSL_FLAG(uint32_t, batch, 72, "B, slots per worker");
ABSL_FLAG(uint32_t, reveal, 128, "overload mode: requests are revealed until this many wait");
ABSL_FLAG(uint32_t, concurrency, 0, "closed mode: requests kept waiting or running");
ABSL_FLAG(uint32_t, horizon, 0, "H, steps of lookahead");
ABSL_FLAG(std::string, lookahead, "survival",
          "predictor of completions: see the list above; oracle gets every length");
ABSL_FLAG(uint32_t, max_new_tokens, 0,
          "max_new_tokens of every request; longer ones are truncated; 0: the workload's longest");
ABSL_FLAG(uint32_t, warmup, 500, "steps before counting starts; 0 when --requests is given and this is not");
// Text rather than a number, because `bfio_sim calibrate` takes names of step logs here.
ABSL_FLAG(std::string, steps, "3000",
          "steps counted; 0: until --requests are done, which is also meant when only --requests is given. "
          "calibrate: the step logs, separated by commas");
ABSL_FLAG(uint64_t, requests, 0, "the run ends when so many requests are done; 0: after --steps");
ABSL_FLAG(bool, count_drain, false,
          "with --requests: count the steps after the last admission too, when the group empties");
ABSL_FLAG(std::string, mode, "overload", "overload, arrivals or closed");
ABSL_FLAG(double, load, 1,
          "arrivals mode: the trace's arrival times are divided by this. serve: share of the capacity of a "
          "perfectly balanced group, default 0.7");
ABSL_FLAG(double, c, bfio::StepCost{}.c_s, "step time: fixed part, seconds");
ABSL_FLAG(double, tl, bfio::StepCost{}.tl_s_per_token, "step time: seconds per token of a worker's load");
ABSL_FLAG(double, prefill, bfio::StepCost{}.prefill_s_per_token,
          "step time: seconds per prompt token of the requests that a worker admits");
ABSL_FLAG(double, overhead, 0, "seconds added to every step, for the barrier and the gap between steps");
ABSL_FLAG(std::string, speeds, "",
          "speeds of the workers against an ordinary one, separated by commas, repeated over the ranks");
ABSL_FLAG(bool, tell_speeds, true, "whether the policy gets the speeds");
ABSL_FLAG(double, jitter, 0,
          "standard deviation of the logarithm of a random factor on every worker's local time");
ABSL_FLAG(
    std::string, drift, "growth",
    "how loads grow: growth, constant, speculative:DRAFT:PROBABILITY, throttled:SHARE, sequence:A,B,..");
ABSL_FLAG(uint64_t, kv_tokens, 0, "KV tokens per worker; 0: no limit");
ABSL_FLAG(std::string, admission, "none",
          "which requests may enter a worker's KV memory: none (a request reserves all that it may need), "
          "kv_feasible (while memory suffices at every future time with probability 0.99, by --lookahead; "
          "kv_feasible:confidence=P for another), protection:alpha=A (while at most the share 1 - A is in "
          "use); and, alone or joined to these with +, which requests leave the pool: wait or nested_wait "
          "(:tokens=N,most=K)");
ABSL_FLAG(std::string, dispatch, "pool",
          "pool: requests wait in the router; instant: each goes to a worker's queue as it comes");
ABSL_FLAG(std::string, plan_mode, "lockstep", "lockstep, or pipelined: a plan takes effect a step later");
ABSL_FLAG(uint32_t, report_delay, 0, "steps by which the workers' reports come late");
ABSL_FLAG(double, prediction_error, 0,
          "lookahead=oracle: lengths are given with an error factor between 1 - x and 1 + x");
ABSL_FLAG(double, hint_lead, 8, "lookahead=hint: scale of the hints, in tokens before the end of a request");
ABSL_FLAG(double, hint_noise, 0.5, "lookahead=hint: standard deviation of the logarithm of the hints");
ABSL_FLAG(uint64_t, seed, 1,
          "seed of random policies, of drawn lengths and, above 1, of where a trace starts");
ABSL_FLAG(uint32_t, window, 0,
          "requests from the front of the pool that a policy gets; 0: 4,096, or --reveal if that is more");
ABSL_FLAG(double, discount, 1,
          "bf_io: weight of a step ahead relative to the step before it; 1 in the paper");
ABSL_FLAG(
    double, wait_ratio, bfio::core::PolicyOptions{}.wait_ratio,
    "bf_io_auto, where slots are short: 99th percentile of waits over that of first come, first served");
ABSL_FLAG(uint32_t, choices, 4, "power_of_d: d, workers drawn for each request");
ABSL_FLAG(std::string, shadow, "",
          "policies, separated by commas, that plan for every decision without being applied; their regrets "
          "follow the table, and decision times include theirs");
ABSL_FLAG(std::string, dump_lp, "",
          "folder that gets counted decisions, 1,000 per policy, as files that CBC, HiGHS and glpsol read");
ABSL_FLAG(uint32_t, threads, 0, "dominance: threads that share the runs, 0 for one per processor");

namespace bfio::sim {
namespace {

// Number of requests drawn from a profile; longer simulations repeat them.
constexpr int64_t kProfileRequests = 20'000;

absl::StatusOr<std::vector<double>> Speeds(const std::string& text) {
  std::vector<double> speeds;
  for (const auto& item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtod(item, &speeds.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("--speeds=", text, ": '", item, "' is no number"));
    }
  }
  return speeds;
}

void PrintDroppedRows(const Trace& trace) {
  if (trace.dropped == 0) return;
  std::cerr << trace.source << ": " << trace.dropped << " unusable rows dropped, such as "
            << absl::StrJoin(trace.dropped_examples, "; ") << "\n";
}

}  // namespace

absl::StatusOr<SimOptions> OptionsFromFlags() {
  SimOptions options;
  options.objective = absl::GetFlag(FLAGS_objective);
  options.horizon = static_cast<int32_t>(absl::GetFlag(FLAGS_horizon));
  options.lookahead = absl::GetFlag(FLAGS_lookahead);
  options.discount = absl::GetFlag(FLAGS_discount);
  options.choices = static_cast<int32_t>(absl::GetFlag(FLAGS_choices));
  options.wait_ratio = absl::GetFlag(FLAGS_wait_ratio);
  options.window = absl::GetFlag(FLAGS_window);
  options.shadow = absl::StrSplit(absl::GetFlag(FLAGS_shadow), ',', absl::SkipEmpty());
  options.seed = absl::GetFlag(FLAGS_seed);

  options.dispatch = absl::GetFlag(FLAGS_dispatch);
  options.plan_mode = absl::GetFlag(FLAGS_plan_mode);
  options.report_delay = static_cast<int32_t>(absl::GetFlag(FLAGS_report_delay));

  options.mode = absl::GetFlag(FLAGS_mode);
  options.reveal = absl::GetFlag(FLAGS_reveal);
  options.concurrency = absl::GetFlag(FLAGS_concurrency);
  options.load = absl::GetFlag(FLAGS_load);
  options.requests = static_cast<int64_t>(absl::GetFlag(FLAGS_requests));
  options.count_drain = absl::GetFlag(FLAGS_count_drain);
  const bool by_requests = options.requests > 0;
  options.warmup = by_requests && !FlagWasGiven("warmup") ? 0 : absl::GetFlag(FLAGS_warmup);
  const std::string steps = absl::GetFlag(FLAGS_steps);
  if (!absl::SimpleAtoi(steps, &options.steps)) {
    return absl::InvalidArgumentError(absl::StrCat("--steps=", steps, " is no whole number"));
  }
  if (by_requests && !FlagWasGiven("steps")) options.steps = 0;

  options.workers = static_cast<int32_t>(absl::GetFlag(FLAGS_workers));
  options.batch = static_cast<int32_t>(absl::GetFlag(FLAGS_batch));
  options.kv_tokens = static_cast<int64_t>(absl::GetFlag(FLAGS_kv_tokens));
  options.admission = absl::GetFlag(FLAGS_admission);
  options.max_new_tokens = absl::GetFlag(FLAGS_max_new_tokens);
  options.cost.c_s = absl::GetFlag(FLAGS_c);
  options.cost.tl_s_per_token = absl::GetFlag(FLAGS_tl);
  options.cost.prefill_s_per_token = absl::GetFlag(FLAGS_prefill);
  options.overhead_s = absl::GetFlag(FLAGS_overhead);
  BFIO_ASSIGN_OR_RETURN(options.speeds, Speeds(absl::GetFlag(FLAGS_speeds)));
  options.tell_speeds = absl::GetFlag(FLAGS_tell_speeds);
  options.jitter = absl::GetFlag(FLAGS_jitter);
  options.drift = absl::GetFlag(FLAGS_drift);
  options.prediction_error = absl::GetFlag(FLAGS_prediction_error);
  options.hint_lead = absl::GetFlag(FLAGS_hint_lead);
  options.hint_noise = absl::GetFlag(FLAGS_hint_noise);

  options.dump_lp = absl::GetFlag(FLAGS_dump_lp);
  return options;
}

absl::StatusOr<Trace> WorkloadFromFlags(uint64_t seed, int64_t requests) {
  const std::string path = absl::GetFlag(FLAGS_trace), profile = absl::GetFlag(FLAGS_profile),
                    draw = absl::GetFlag(FLAGS_draw);
  if (!path.empty() && !profile.empty()) {
    return absl::InvalidArgumentError("give --trace or --profile, not both");
  }
  if (draw != "order" && draw != "replacement") {
    return absl::InvalidArgumentError(absl::StrCat("--draw=", draw, ": choose order or replacement"));
  }
  const int64_t drawn = requests > 0 ? requests : kProfileRequests;
  if (path.empty()) return SampleProfile(profile.empty() ? "conversation" : profile, drawn, seed);
  absl::StatusOr<Trace> trace = ReadTrace(path);
  if (!trace.ok()) return trace;
  PrintDroppedRows(*trace);
  return draw == "replacement" ? DrawWithReplacement(*trace, drawn, seed) : Rotated(*trace, seed);
}

std::vector<std::string> PoliciesFromFlags() {
  if (!FlagWasGiven("policy")) return {};
  return absl::StrSplit(absl::GetFlag(FLAGS_policy), ',', absl::SkipEmpty());
}

int32_t ThreadsFromFlags() {
  const int32_t threads = static_cast<int32_t>(absl::GetFlag(FLAGS_threads));
  return threads > 0 ? threads : std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

}  // namespace bfio::sim
