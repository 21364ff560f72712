// What a running cluster's metrics say about its ranks, its requests and the cost of its steps. Input are the
// metrics of all ranks at several times; nothing else is asked of the engines. Pure. Threads: any. Units:
// tokens, seconds.
//
// A window lies between two samples. Its step time is the mean gap between tokens. Gaps are explained by the
// KV tokens of the fullest rank, and by the rows of the rank with most prompt tokens in a step: prompts begin
// at random, at the window's rate, and a rank computes those that begin in a step together.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/rng.h"
#include "common/cost/batch_time.h"
#include "common/telemetry/metrics/engine_metrics.h"
#include "common/workload/trace.h"

namespace bfio::sim {

struct ClusterSample {
  double at_s = 0;
  // All ranks, always in the same order.
  std::vector<EngineMetrics> ranks;
};

// What happened between two samples.
struct ClusterWindow {
  // Its length, and the mean gap between tokens.
  double seconds = 0, step_s = 0;
  // Gaps of all ranks.
  double gaps = 0;
  // By rank: mean KV tokens, prompt tokens that were completed, and mean gap (0: none).
  std::vector<double> kv, prompted, gap_s;
};

struct ClusterMeasurements {
  int32_t ranks = 0;
  double seconds = 0;
  // By rank, means over time.
  std::vector<double> running, waiting, kv;
  double requests_per_s = 0, tokens_per_s = 0;
  double prompt_tokens = 0, output_tokens = 0;
  // Share of the prompt tokens that were cached.
  double cached = 0;
  double step_s = 0, ttft_s = 0, e2e_s = 0;
  // Tokens that a request generates in a step (speculative decoding).
  double tokens_per_step = 1;
  // The fullest rank's KV tokens, mean over time, and those of all ranks.
  double most_kv = 0, mean_kv = 0;
  // Variance of the ranks' gaps within windows as a share of that of all gaps: near 0 where ranks wait for
  // each other, since a window's prompts delay all of them alike, and near 1 where each steps by itself.
  double own_gaps = 0;
  // SGLang's; 0: not reported.
  double slots = 0;
  MetricHistogram prompts, outputs;
  // Since the engines' start.
  MetricHistogram gaps;
  std::vector<ClusterWindow> windows;
};

// FAILED_PRECONDITION, in one line, when something is not reported or nothing happened: fewer than
// kLeastWindows windows with tokens. A window in which a counter falls (a restart) does not count.
constexpr size_t kLeastWindows = 48;
absl::StatusOr<ClusterMeasurements> Measure(absl::Span<const ClusterSample> samples);

// `requests` rows with lengths drawn from the histograms, independently. Within a bucket they are spread so
// that the mean is the measured one. Empty where a histogram is. REQUIRES: Measure has succeeded.
Trace DrawLengths(const ClusterMeasurements& measured, int64_t requests, uint64_t seed);

// Rows of a step beyond which it takes longer, as assumed, beside its decodes: where compute begins to
// dominate on present GPUs. Smaller prompts count as free.
constexpr int64_t kAssumedB0 = 256;

// Expected rows beyond kAssumedB0 in a step, of the rank with most, by the number of prompts that begin on a
// rank per step.
class PromptRows {
 public:
  // For prompts with the trace's lengths, less what is cached, and a token budget per step.
  PromptRows(const Trace& trace, double cached, int32_t ranks, int64_t budget, uint64_t seed);
  double Most(double prompts_per_step) const;

 private:
  // At kLeastRate times powers of kRateFactor.
  std::vector<double> most_;
};

struct FittedCost {
  BatchCost cost;
  // The windows do not tell C and A apart, because nearly every step has prompts or the lengths of prompts
  // vary too much. C is then the time of the quickest steps since the engines' start. It may be too long;
  // then prompts cost more than this says.
  bool bound = false;
};
// C, A and K2 of the windows; with `resample`, of blocks of windows drawn with replacement. Empty: they
// cannot be determined.
std::optional<FittedCost> FitCost(const ClusterMeasurements& measured, const PromptRows& prompts,
                                  Rng* resample = nullptr);

}  // namespace bfio::sim
