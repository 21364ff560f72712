#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/rng.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/cost/batch_time.h"
#include "nlohmann/json.hpp"
#include "research/admission/commands.h"
#include "research/admission/lengths.h"
#include "research/admission/one_worker.h"

namespace bfio::sim {
namespace {

// Number of rows that represent a profile.
constexpr int64_t kRowsToDrawFrom = 100'000;
constexpr int64_t kLongestLmsys = 2000;
// Medians of lmsys-chat-1m as the paper states them; exp(sigma^2 / 2) is mean / median.
constexpr double kPromptMedian = 11, kPromptSigma = 1.616, kOutputMedian = 45, kOutputSigma = 1.131;

int64_t Lognormal(Rng& rng, double median, double sigma) {
  return std::clamp<int64_t>(std::llround(median * std::exp(sigma * rng.Normal())), 1, kLongestLmsys);
}

// Poisson arrivals with lengths drawn from `rows`, or lognormal if there are none. Requests that can never
// fit are left out.
std::vector<KvArrival> DrawKvArrivals(const Trace& rows, double rate, int64_t requests, int64_t memory,
                                      uint64_t seed) {
  Rng times = Rng(seed).Fork(1), sizes = Rng(seed).Fork(2);
  std::vector<KvArrival> arrivals;
  double at = 0;
  for (int64_t tries = 0; static_cast<int64_t>(arrivals.size()) < requests && tries < 100 * requests;
       ++tries) {
    KvArrival arrival;
    if (rows.requests.empty()) {
      arrival.prompt = Lognormal(sizes, kPromptMedian, kPromptSigma);
      arrival.output = Lognormal(sizes, kOutputMedian, kOutputSigma);
    } else {
      const TraceRequest& row = rows.requests[sizes.Below(rows.requests.size())];
      arrival.prompt = row.prompt_tokens;
      arrival.output = row.output_tokens;
    }
    if (arrival.prompt + arrival.output > memory) continue;
    at += times.Exponential() / rate;
    arrival.at = at;
    arrivals.push_back(arrival);
  }
  return arrivals;
}

enum class Belief { kKnown, kWithinQuarter, kHalfToAll, kAllToTwice, kLimit, kSurvival };

// Sets the predicted lengths. `limit`: max_new_tokens of every request; 0: none.
void Believe(Belief belief, int64_t limit, uint64_t seed, std::vector<KvArrival>& arrivals) {
  Rng errors = Rng(seed).Fork(3);
  const auto scaled = [&](int64_t output, double factor) {
    const int64_t most = limit > 0 ? limit : int64_t{1} << 40;
    return std::clamp<int64_t>(std::llround(static_cast<double>(output) * factor), 1, most);
  };
  for (KvArrival& arrival : arrivals) {
    arrival.most = limit;
    if (belief == Belief::kLimit) arrival.believed = limit;
    if (belief == Belief::kWithinQuarter)
      arrival.believed = scaled(arrival.output, 0.75 + 0.5 * errors.Uniform());
    if (belief == Belief::kHalfToAll) arrival.believed = scaled(arrival.output, 0.5 + 0.5 * errors.Uniform());
    if (belief == Belief::kAllToTwice) arrival.believed = scaled(arrival.output, 1 + errors.Uniform());
  }
}

nlohmann::ordered_json ToJson(const KvRun& run, int64_t samples) {
  nlohmann::ordered_json cell = {{"latency_s_mean", run.looped ? std::nan("") : run.mean_latency},
                                 {"completed", run.completed},
                                 {"rounds", run.rounds},
                                 {"looped", run.looped},
                                 {"evictions", run.evictions},
                                 {"preemptions", run.preemptions},
                                 {"repeated_tokens", run.repeated_tokens},
                                 {"peak_kv_tokens", run.peak_memory},
                                 {"overflows", run.overflows}};
  if (samples == 0) return cell;
  const size_t stride = std::max<size_t>(1, run.memory.size() / static_cast<size_t>(samples));
  for (const char* key : {"sample_s", "sample_kv_tokens"}) cell[key] = nlohmann::ordered_json::array();
  for (size_t k = 0; k < run.memory.size(); k += stride) {
    cell["sample_s"].push_back(run.memory_time[k]);
    cell["sample_kv_tokens"].push_back(run.memory[k]);
  }
  return cell;
}

// --belief, and for kSurvival the probability with which the predicted length is enough.
struct BeliefSetting {
  Belief belief = Belief::kKnown;
  double confidence = 0.99;
};

absl::StatusOr<BeliefSetting> ParseBelief(absl::string_view text) {
  if (text == "known") return BeliefSetting{Belief::kKnown};
  if (text == "within_quarter") return BeliefSetting{Belief::kWithinQuarter};
  if (text == "half_to_all") return BeliefSetting{Belief::kHalfToAll};
  if (text == "all_to_twice") return BeliefSetting{Belief::kAllToTwice};
  if (text == "limit") return BeliefSetting{Belief::kLimit};
  BeliefSetting survival{Belief::kSurvival};
  if (text == "survival") return survival;
  if (!absl::ConsumePrefix(&text, "survival:confidence=")) {
    return absl::InvalidArgumentError(
        "choose one of known, within_quarter, half_to_all, all_to_twice, limit, survival, "
        "survival:confidence=P");
  }
  if (!absl::SimpleAtod(text, &survival.confidence) ||
      !(survival.confidence >= 1e-6 && survival.confidence <= 1 - 1e-9)) {
    return absl::InvalidArgumentError("the confidence must be above 0 and below 1");
  }
  return survival;
}

}  // namespace

absl::Status RunAdmitCommand(const ReadOptions& read) {
  std::string trace, profile;
  std::string rule = "mc_sf_paced";
  BeliefSetting believed;
  double rate = 50, batch_time_factor = 1;
  int64_t requests = 0, memory = 0, limit = 0, samples = 0;
  uint64_t seed = 1;
  bool json = true;
  OptionTable table;
  table.Add("trace", &trace, "trace file (Azure, BurstGPT, Mooncake or generic columns)");
  table.Add("profile", &profile,
            "built-in workload instead of a trace; if neither is given, lognormal lengths");
  table.Add("rule", &rule, kAdmissionRules);
  table.AddParsed("belief", &believed, "known",
                  "output length that the rule plans with: known (the true length), a random multiple of it "
                  "(within_quarter: 0.75 to 1.25, half_to_all: 0.5 to 1, all_to_twice: 1 to 2), limit "
                  "(--max_new_tokens), survival (learned from completed requests, sufficient with "
                  "probability 0.99) or survival:confidence=P",
                  ParseBelief);
  table.Add("rate", &rate, Within(1e-6, 1e9), "Poisson arrivals per second");
  table.Add("batch_time_factor", &batch_time_factor, Within(1e-6, 1e6),
            "factor on the duration of every batch");
  table.Add("requests", &requests, Within(1, 10'000'000), "number of requests that arrive");
  table.Add("kv_tokens", &memory, Within(1, 1e12), "KV cache capacity of the worker, in tokens");
  table.Add("max_new_tokens", &limit, Within(0, 1e9), "max_new_tokens of every request; 0: none");
  table.Add("samples", &samples, Within(0, 1e9),
            "number of samples of KV use over time in the output, approximate; 0: none");
  table.Add("seed", &seed, "seed of arrivals and lengths");
  AddJson(table, json);
  read(table);
  if (requests == 0 || memory == 0) {
    return absl::InvalidArgumentError("admit needs --requests and --kv_tokens");
  }
  if (limit == 0 && (believed.belief == Belief::kSurvival || believed.belief == Belief::kLimit)) {
    return absl::InvalidArgumentError("--belief=limit and --belief=survival need --max_new_tokens");
  }
  if (!trace.empty() && !profile.empty())
    return absl::InvalidArgumentError("--trace and --profile cannot be used together");
  Trace rows;
  if (!trace.empty() || !profile.empty()) {
    BFIO_ASSIGN_OR_RETURN(rows,
                          trace.empty() ? SampleProfile(profile, kRowsToDrawFrom, 1) : ReadTrace(trace));
  }
  std::vector<KvArrival> arrivals = DrawKvArrivals(rows, rate, requests, memory, seed);
  if (arrivals.empty()) return absl::InvalidArgumentError("no request fits into --kv_tokens");
  Believe(believed.belief, limit, seed, arrivals);
  std::unique_ptr<Lengths> lengths;
  if (believed.belief == Belief::kSurvival) {
    BFIO_ASSIGN_OR_RETURN(auto lookahead, core::MakeLookahead("survival"));
    lengths = std::make_unique<LookaheadLengths>(std::move(lookahead), believed.confidence);
  }
  KvRunOptions options;
  options.rule.memory = memory;
  options.rule.seed = seed;
  options.rule.lengths = lengths.get();
  // An empty round takes as long as a round with one token.
  options.round_seconds = [batch_time_factor](int64_t tokens) {
    return batch_time_factor * BatchCost().Seconds(std::max<int64_t>(1, tokens));
  };
  options.memory_every = samples > 0 ? 1 : 0;
  options.go_on = [] { return !ShutdownSignal::Requested(); };
  BFIO_ASSIGN_OR_RETURN(const KvRun run, RunOneWorker(rule, arrivals, options));
  if (ShutdownSignal::Requested()) return absl::CancelledError("stopped by a signal");
  PrintJson(ToJson(run, samples));
  return absl::OkStatus();
}

}  // namespace bfio::sim
