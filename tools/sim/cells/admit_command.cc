#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/rng.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/cost/batch_time.h"
#include "nlohmann/json.hpp"
#include "tools/sim/admission/lengths.h"
#include "tools/sim/admission/one_worker.h"
#include "tools/sim/cells/cell.h"
#include "tools/sim/cells/cells.h"

ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(uint64_t, requests);
ABSL_DECLARE_FLAG(uint64_t, kv_tokens);
ABSL_DECLARE_FLAG(uint32_t, max_new_tokens);
ABSL_FLAG(
    std::string, rule, "mc_sf_paced",
    "admit, hindsight: mc_sf_paced, mc_sf or mc_fcfs (each with :margin=N,most=K), protect:alpha=A,beta=B or "
    "watermark:share=W,block=K; hindsight takes several, separated by commas. serve, serve-grid: bf_io "
    "unless "
    "another of the list in bfio_sim --help is given");
ABSL_FLAG(double, rate, 50, "admit: Poisson arrivals per second");
ABSL_FLAG(double, batch_time_factor, 1, "admit: multiplies the seconds of a batch");
ABSL_FLAG(std::string, belief, "known",
          "admit: the length that a rule is told: known, within_quarter (of the truth), half_to_all or "
          "all_to_twice "
          "(of it), limit (--max_new_tokens), survival (learnt: enough with probability 0.99) or "
          "survival:confidence=P");
ABSL_FLAG(uint32_t, samples, 0, "admit: most samples over time that are printed; 0: none");

namespace bfio::sim {
namespace {

constexpr int64_t kMostRequests = 10'000'000;
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

nlohmann::ordered_json Told(const KvRun& run, int64_t samples) {
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

absl::Status CheckAdmitFlags(Belief belief) {
  for (const absl::Status& status :
       {CheckNumber("rate", absl::GetFlag(FLAGS_rate), 1e-6, 1e9),
        CheckNumber("batch_time_factor", absl::GetFlag(FLAGS_batch_time_factor), 1e-6, 1e6),
        CheckNumber("requests", static_cast<double>(absl::GetFlag(FLAGS_requests)), 1, kMostRequests),
        CheckNumber("kv_tokens", static_cast<double>(absl::GetFlag(FLAGS_kv_tokens)), 1, 1e12)}) {
    if (!status.ok()) return status;
  }
  if (absl::GetFlag(FLAGS_max_new_tokens) == 0 && (belief == Belief::kSurvival || belief == Belief::kLimit)) {
    return absl::InvalidArgumentError("this --belief needs --max_new_tokens");
  }
  return absl::OkStatus();
}

// The arrivals that --rate, --requests and other flags define, with the predictions that the rule receives.
absl::StatusOr<std::vector<KvArrival>> ArrivalsFromFlags(Belief belief) {
  BFIO_ASSIGN_OR_RETURN(const Trace rows, RowsFromFlags());
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  std::vector<KvArrival> arrivals =
      DrawKvArrivals(rows, absl::GetFlag(FLAGS_rate), static_cast<int64_t>(absl::GetFlag(FLAGS_requests)),
                     static_cast<int64_t>(absl::GetFlag(FLAGS_kv_tokens)), seed);
  if (arrivals.empty()) return absl::InvalidArgumentError("no request fits into --kv_tokens");
  Believe(belief, absl::GetFlag(FLAGS_max_new_tokens), seed, arrivals);
  return arrivals;
}

}  // namespace

absl::Status RunAdmitCommand() {
  const std::string belief_text = absl::GetFlag(FLAGS_belief);
  double confidence = 0.99;
  absl::string_view name = belief_text;
  if (absl::ConsumePrefix(&name, "survival:confidence=")) {
    if (!absl::SimpleAtod(name, &confidence) || !(confidence >= 1e-6 && confidence <= 1 - 1e-9)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--belief=", belief_text, ": the confidence must be above 0 and below 1"));
    }
    name = "survival";
  }
  BFIO_ASSIGN_OR_RETURN(const size_t choice, ChoiceOf("belief", name,
                                                      {"known", "within_quarter", "half_to_all",
                                                       "all_to_twice", "limit", "survival"}));
  const auto belief = static_cast<Belief>(choice);
  BFIO_RETURN_IF_ERROR(CheckAdmitFlags(belief));
  BFIO_ASSIGN_OR_RETURN(const std::vector<KvArrival> arrivals, ArrivalsFromFlags(belief));
  std::unique_ptr<Lengths> lengths;
  if (belief == Belief::kSurvival) {
    BFIO_ASSIGN_OR_RETURN(auto lookahead, core::MakeLookahead("survival"));
    lengths = std::make_unique<LookaheadLengths>(std::move(lookahead), confidence);
  }
  KvRunOptions options;
  options.rule.memory = static_cast<int64_t>(absl::GetFlag(FLAGS_kv_tokens));
  options.rule.seed = absl::GetFlag(FLAGS_seed);
  options.rule.lengths = lengths.get();
  // An empty round takes as long as a round with one token.
  options.round_seconds = [factor = absl::GetFlag(FLAGS_batch_time_factor)](int64_t tokens) {
    return factor * BatchCost().Seconds(std::max<int64_t>(1, tokens));
  };
  options.memory_every = absl::GetFlag(FLAGS_samples) > 0 ? 1 : 0;
  options.go_on = [] { return !ShutdownSignal::Requested(); };
  BFIO_ASSIGN_OR_RETURN(const KvRun run, RunOneWorker(absl::GetFlag(FLAGS_rule), arrivals, options));
  if (ShutdownSignal::Requested()) return absl::CancelledError("stopped by a signal");
  PrintCell(Told(run, absl::GetFlag(FLAGS_samples)));
  return absl::OkStatus();
}

}  // namespace bfio::sim
