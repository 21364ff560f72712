#include "tools/sim/experiment/kv_study.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "common/cost/batch_time.h"

namespace bfio::sim {
namespace {

constexpr int64_t kLongest = 2000;
// exp(sigma^2 / 2) is mean / median.
constexpr double kPromptMedian = 11, kPromptSigma = 1.616, kOutputMedian = 45, kOutputSigma = 1.131;

int64_t Lognormal(Rng& rng, double median, double sigma) {
  return std::clamp<int64_t>(std::llround(median * std::exp(sigma * rng.Normal())), 1, kLongest);
}

}  // namespace

double KvBatchSeconds(int64_t tokens) {
  // An empty round takes as long as a full one of few tokens.
  return BatchCost().Seconds(std::max<int64_t>(1, tokens));
}

std::vector<KvArrival> KvArrivals(const KvLengths& lengths, double rate, int64_t requests, int64_t memory,
                                  uint64_t seed) {
  Rng times = Rng(seed).Fork(1), sizes = Rng(seed).Fork(2);
  std::vector<KvArrival> arrivals;
  double at = 0;
  for (int64_t tries = 0; static_cast<int64_t>(arrivals.size()) < requests && tries < 100 * requests;
       ++tries) {
    KvArrival arrival;
    if (lengths.trace == nullptr) {
      arrival.prompt = Lognormal(sizes, kPromptMedian, kPromptSigma);
      arrival.output = Lognormal(sizes, kOutputMedian, kOutputSigma);
    } else {
      const TraceRequest& row = lengths.trace->requests[sizes.Below(lengths.trace->requests.size())];
      arrival.prompt = row.prompt_tokens;
      arrival.output = std::max<int64_t>(1, row.output_tokens);
    }
    if (arrival.prompt + arrival.output > memory) continue;
    at += times.Exponential() / rate;
    arrival.at = at;
    arrivals.push_back(arrival);
  }
  return arrivals;
}

absl::StatusOr<std::vector<std::vector<KvRun>>> RunKv(const ExperimentContext& context,
                                                      const std::vector<KvPlan>& plans) {
  const auto seeds = static_cast<size_t>(context.seeds);
  std::vector<std::vector<KvRun>> results(plans.size(), std::vector<KvRun>(seeds));
  std::vector<std::string> names;
  for (const KvPlan& plan : plans) {
    for (size_t seed = 1; seed <= seeds; ++seed) {
      names.push_back(
          absl::StrCat(plan.of.rule, ", ", plan.requests, " arrivals at ", plan.of.rate, "/s, seed ", seed));
    }
  }
  const absl::Status status =
      context.runner->ForEach(names, [&](size_t i, const Runner::GoOn& go_on) -> absl::Status {
        const KvPlan& plan = plans[i / seeds];
        const uint64_t seed = i % seeds + 1;
        KvRunOptions options;
        options.rule.memory = plan.of.memory;
        options.rule.seed = seed;
        options.round_seconds = [slowness = plan.of.slowness](int64_t tokens) {
          return slowness * KvBatchSeconds(tokens);
        };
        options.memory_every = seed == 1 ? plan.of.memory_every : 0;
        options.go_on = go_on;
        auto run = RunOneWorker(
            plan.of.rule, KvArrivals(plan.of.lengths, plan.of.rate, plan.requests, plan.of.memory, seed),
            options);
        if (!run.ok()) return run.status();
        results[i / seeds][seed - 1] = *std::move(run);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return results;
}

bool AnyLooped(const std::vector<KvRun>& runs) {
  return std::any_of(runs.begin(), runs.end(), [](const KvRun& run) { return run.looped; });
}

Estimate KvLatency(const std::vector<KvRun>& runs) {
  if (AnyLooped(runs)) return {0, std::nan(""), 0, 0};
  std::vector<double> samples;
  for (const KvRun& run : runs) samples.push_back(run.mean_latency);
  return EstimateMean(samples);
}

std::vector<std::pair<std::string, std::string>> KvParameters(const ExperimentContext& context,
                                                              int64_t requests) {
  const BatchCost batch;
  return {{"workers", "1"},
          {"KV memory M", absl::StrCat(kKvMemory, " tokens")},
          {"seconds of a batch",
           absl::StrCat(batch.c_s, " + ", batch.a_s_per_token, " max(0, tokens - ", batch.b0_tokens, ")")},
          {"arrivals", absl::StrCat("Poisson, ", requests)},
          {"lmsys",
           absl::StrCat("prompts lognormal(ln ", kPromptMedian, ", ", kPromptSigma,
                        "), answers lognormal(ln ", kOutputMedian, ", ", kOutputSigma, "), 1 to ", kLongest)},
          {"seeds", absl::StrCat("1 to ", context.seeds)},
          {"intervals", "95 %, Student's t over the seeds"}};
}

}  // namespace bfio::sim
