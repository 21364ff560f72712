#include "tools/sim/estimate/estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tools/sim/rank/shared.h"
#include "tools/sim/serve/serve_run.h"

namespace bfio::sim {

BFIO_JSON_OF(ClusterMeasurements, ranks, seconds, running, waiting, kv, requests_per_s, tokens_per_s,
             prompt_tokens, output_tokens, cached, step_s, ttft_s, e2e_s, tokens_per_step, most_kv, mean_kv,
             own_gaps)

namespace {

using Json = nlohmann::ordered_json;

// Rows of a drawn workload.
constexpr int64_t kDrawn = 20'000;
// bfio in front of unmodified engines, and the lag of a pipelined router.
constexpr char kBfio[] = "bf_io_release";
constexpr int32_t kBfioLag = 2;
// Above this share of the gaps' variance within windows, ranks do not wait for each other. Both kinds are far
// from it: prompts vary the gaps of a barrier's ranks together, and those of other ranks one by one.
constexpr double kOwnSteps = 0.5;
// With this share of the slots in use, the rate is what the ranks can serve, and not what clients ask for.
constexpr double kFull = 0.9;
// As bfio_sim serve takes them.
constexpr double kMostSlots = 65536;
// A smaller change is none. And a simulation of the present whose steps or ends differ more from it is wrong.
constexpr double kLeastChange = 0.03, kModelError = 0.1;

double OfAllRanks(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// The present balancer. Whole prompts as if nothing were cached: their rows cost as much less as they are
// fewer in reality. Decodes come beside the rows from which on a step takes longer.
ServeOptions RunOf(const ClusterMeasurements& measured, const EstimateOptions& options, const BatchCost& cost,
                   const Trace& trace) {
  const double computed = std::max(0.01, 1 - measured.cached), running = OfAllRanks(measured.running);
  ServeOptions run;
  run.rule = options.rule;
  run.workers = measured.ranks;
  run.slots = measured.slots > 0 ? std::llround(std::min(measured.slots, kMostSlots)) : options.slots;
  run.budget = std::llround(static_cast<double>(options.budget) / computed);
  run.cost = {cost, options.terms};
  if (!options.cost) {
    run.cost.batch.a_s_per_token *= computed;
    run.cost.batch.b0_tokens =
        std::llround((static_cast<double>(cost.b0_tokens) + running / measured.ranks) / computed);
  }
  run.tokens_per_step = measured.tokens_per_step;
  run.least_requests = options.requests;
  const double slots = static_cast<double>(run.slots) * measured.ranks;
  run.closed = running > kFull * slots;
  const ServeCapacity capacity = CapacityOf(MomentsOf(trace), run.cost.batch, run.workers, run.slots);
  run.load = run.closed ? (running + OfAllRanks(measured.waiting)) / slots
                        : std::clamp(measured.requests_per_s / capacity.requests_per_s, 1e-6, 10.0);
  return run;
}

// Odd metrics lead to runs that would take forever.
bool IsPlausible(const ServeOptions& run) {
  const BatchCost& cost = run.cost.batch;
  return run.load > 0 && run.load <= 10 && run.tokens_per_step >= 1 && run.tokens_per_step <= 64 &&
         cost.c_s > 0 && cost.a_s_per_token > 0 && cost.b0_tokens <= 1'000'000'000;
}

Json Figures(const ServeResult& result) {
  return {{"step_s", result.step_s_mean},
          {"idle", result.idle_fraction},
          {"tokens_per_s", result.throughput_tokens_per_s},
          {"ttft_s", result.times.ttft_s.mean},
          {"ttft_p99_s", result.times.ttft_s.p99},
          {"tpot_s", result.times.tpot_s.mean},
          {"e2e_s", result.times.e2e_s.mean},
          {"e2e_p99_s", result.times.e2e_s.p99}};
}

// Means, and of the ratios the extremes.
struct Sums {
  Json now = Json::object(), then = Json::object(), change = Json::object();
  int32_t runs = 0;

  void Add(const Json& with_rule, const Json& with_bfio) {
    ++runs;
    for (const auto& [key, value] : with_rule.items()) {
      const double before = value, after = with_bfio.at(key);
      const auto mean = [&](Json& of, double one) {
        const double old = of.value(key, 0.0);
        of[key] = old + (one - old) / runs;
      };
      mean(now, before);
      mean(then, after);
      if (key.starts_with("idle") || before <= 0) continue;
      const double ratio = after / before;
      Json& entry = change[key];
      if (entry.is_null()) entry = {{"mean", 0.0}, {"least", ratio}, {"most", ratio}};
      entry["mean"] = entry["mean"].get<double>() + (ratio - entry["mean"].get<double>()) / runs;
      entry["least"] = std::min(entry["least"].get<double>(), ratio);
      entry["most"] = std::max(entry["most"].get<double>(), ratio);
    }
  }
};

std::pair<std::string, std::string> AnswerOf(const Sums& sums, bool closed) {
  const Json& change = sums.change.at(closed ? "tokens_per_s" : "e2e_s");
  const double mean = change.at("mean"), least = change.at("least"), most = change.at("most");
  const bool better = closed ? least > 1 : most < 1, worse = closed ? most < 1 : least > 1;
  const bool changes = std::abs(mean - 1) >= kLeastChange;
  return {changes && better  ? "yes"
          : changes && worse ? "worse"
                             : "no",
          absl::StrFormat("%s with bfio would be %.2f times that of today (%.2f to %.2f)",
                          closed ? "the rate of tokens" : "end-to-end time", mean, least, most)};
}

}  // namespace

absl::StatusOr<Json> Estimate(const ClusterMeasurements& measured, const EstimateOptions& options,
                              const std::function<bool(int32_t)>& progress) {
  Json json = {{"measured", measured}};
  json["measured"]["uneven"] = measured.most_kv > 0 ? 1 - measured.mean_kv / measured.most_kv : 0;
  const auto answer = [&](std::string word, std::string why) {
    json["answer"] = std::move(word);
    json["why"] = std::move(why);
    return json;
  };
  if (measured.ranks == 1) return answer("no", "there is one rank");
  if (!options.barrier.value_or(measured.own_gaps < kOwnSteps)) {
    return answer(
        "no",
        "the ranks do not wait for each other, since their step times vary one by one, so balance saves "
        "them no time. bfio gives such ranks one queue, placement by prefixes and fair shares");
  }
  Sums sums;
  bool closed = false;
  const char* trust = "good";
  for (int32_t i = 0; i < options.runs; ++i) {
    if (!progress(i)) return absl::CancelledError("interrupted");
    const uint64_t seed = options.seed + static_cast<uint64_t>(i);
    const Trace trace = options.trace ? *options.trace : DrawLengths(measured, kDrawn, seed);
    if (trace.requests.empty()) {
      return absl::FailedPreconditionError(
          "the engines do not report the lengths of requests (SGLang: --collect-tokens-histogram); give "
          "--trace");
    }
    std::optional<FittedCost> fitted;
    if (options.cost) {
      fitted = {*options.cost};
    } else {
      Rng rng(seed);
      const PromptRows rows(trace, measured.cached, measured.ranks, options.budget, seed);
      fitted = FitCost(measured, rows, i == 0 ? nullptr : &rng);
    }
    if (!fitted) continue;
    ServeOptions run = RunOf(measured, options, fitted->cost, trace);
    run.seed = seed;
    if (!IsPlausible(run)) continue;
    if (json["cost"].is_null()) {
      json["cost"] = {{"c_s", fitted->cost.c_s},
                      {"a_s_per_token", fitted->cost.a_s_per_token},
                      {"b0_tokens", fitted->cost.b0_tokens},
                      {"k1_s_per_pair", fitted->cost.k1_s_per_pair},
                      {"k2_s_per_token", fitted->cost.k2_s_per_token}};
      json["load"] = run.load;
      json["closed"] = closed = run.closed;
      if (fitted->bound) trust = "bound";
    }
    run.closed = closed;
    const absl::StatusOr<ServeResult> now = RunServe(run, trace);
    run.rule = kBfio;
    run.lag = kBfioLag;
    const absl::StatusOr<ServeResult> then = RunServe(run, trace);
    for (const absl::Status& status : {now.status(), then.status()}) {
      if (!status.ok() && !absl::IsResourceExhausted(status)) return status;
    }
    if (now.ok() && then.ok()) sums.Add(Figures(*now), Figures(*then));
  }
  if (sums.runs == 0) {
    return answer(
        "unknown",
        "the metrics do not determine a cost of steps at which the ranks could serve what they do serve: "
        "measure for longer, while the load changes, or give --cost");
  }
  json["runs"] = sums.runs;
  json["model"] = sums.now;
  json["bfio"] = sums.then;
  json["change"] = sums.change;
  // By which the simulation of the present is too slow.
  double error = sums.now.at("step_s").get<double>() / measured.step_s - 1;
  if (measured.e2e_s > 0) {
    const double of_ends = sums.now.at("e2e_s").get<double>() / measured.e2e_s - 1;
    error = std::max(error, of_ends, [](double a, double b) { return std::abs(a) < std::abs(b); });
  }
  auto [word, why] = AnswerOf(sums, closed);
  if (std::abs(error) > kModelError) {
    trust = "rough";
    absl::StrAppendFormat(
        &why,
        ". The simulation of the present balancer is off by %.0f %%, so this shows a direction only: "
        "measure for longer, or give --trace and --cost",
        100 * error);
  } else if (absl::string_view(trust) == "bound") {
    // They may cost more, and bfio spreads them.
    if (word != "yes") word = "unknown";
    absl::StrAppend(
        &why,
        ". The measurement does not tell what prompts cost, because nearly every step has some or their "
        "lengths vary much; they cost at least this. Measure while the load changes, or give --cost");
  }
  json["trust"] = trust;
  return answer(word, why);
}

}  // namespace bfio::sim
