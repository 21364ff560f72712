#include "tools/sim/estimate/cluster_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/cost/least_squares.h"

namespace bfio::sim {
namespace {

// Windows that follow each other are alike: they are drawn in blocks of this many.
constexpr size_t kBlockWindows = 8;
// A fit is used if it explains at least this share of the variance of the windows' step times, and if the
// rows of prompts vary by this share of their mean: C and A cannot be told apart otherwise. With fewer rows
// than this, prompts hardly matter.
constexpr double kLeastExplained = 0.5, kLeastSpread = 0.1, kFewRows = 1;
// The quickest steps are this share of the gaps since the start; and no step is quicker than this.
constexpr double kQuickest = 0.01, kLeastStep = 1e-3;
// A row of a model with a billion active parameters, at 1,000 TFLOP/s.
constexpr double kLeastRowSeconds = 2e-6;
// Of PromptRows: prompts per rank and step, and steps drawn for each rate.
constexpr double kLeastRate = 1.0 / 256, kMostRate = 16, kRateFactor = 1.25;
constexpr int kDrawnSteps = 1000;
// Of FitCost: the numbers of steps settle to a thousandth within these.
constexpr int kRounds = 6;
// A histogram may have any bounds; no model reads or generates more.
constexpr int64_t kMostTokens = 10'000'000;

double Since(const MetricHistogram& before, const MetricHistogram& after, MetricHistogram& sum) {
  sum.count += after.count - before.count;
  sum.sum += after.sum - before.sum;
  for (const auto& [bound, count] : after.up_to) {
    const auto earlier = before.up_to.find(bound);
    sum.up_to[bound] += count - (earlier == before.up_to.end() ? 0 : earlier->second);
  }
  return after.count - before.count;
}

double MeanOf(const MetricHistogram& histogram) {
  return histogram.count > 0 ? histogram.sum / histogram.count : 0;
}

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Names what is missing.
absl::Status CheckReported(const ClusterSample& sample) {
  for (size_t g = 0; g < sample.ranks.size(); ++g) {
    const EngineMetrics& rank = sample.ranks[g];
    const char* const missing = rank.running < 0 || rank.waiting < 0      ? "numbers of requests"
                                : rank.kv_use < 0 || rank.kv_tokens <= 0  ? "the size and use of the KV cache"
                                : rank.prompted < 0 || rank.generated < 0 ? "counts of tokens"
                                                                          : nullptr;
    if (missing != nullptr)
      return absl::FailedPreconditionError(absl::StrCat("rank ", g, " does not report ", missing));
  }
  return absl::OkStatus();
}

// A counter has fallen: the engine has been started again.
bool Restarted(const EngineMetrics& before, const EngineMetrics& after) {
  return after.generated < before.generated || after.prompted < before.prompted ||
         after.gaps.count < before.gaps.count || after.ends.count < before.ends.count;
}

// Of a histogram, the part of the values in (low, high].
struct Bucket {
  double low = 0, high = 0, share = 0;
};

// `least`: the smallest value that can be.
std::vector<Bucket> BucketsOf(const MetricHistogram& histogram, double least) {
  std::vector<Bucket> buckets;
  double low = 0, below = 0;
  for (const auto& [bound, count] : histogram.up_to) {
    // Values above the last bound are at most twice as large: no one knows.
    const double high = std::isfinite(bound) ? bound : 2 * std::max(least, low);
    if (count > below) buckets.push_back({std::max(least, low), high, (count - below) / histogram.count});
    below = std::max(below, count);
    low = high;
  }
  return buckets;
}

// Where in a bucket the value with that rank is; `skew` 1: the logarithm is uniform.
double Within(const Bucket& bucket, double rank, double skew) {
  return bucket.low * std::pow(bucket.high / bucket.low, std::pow(rank, skew));
}

double QuantileOf(const MetricHistogram& histogram, double quantile, double least) {
  double below = 0;
  for (const Bucket& bucket : BucketsOf(histogram, least)) {
    if (below + bucket.share >= quantile) return Within(bucket, (quantile - below) / bucket.share, 1);
    below += bucket.share;
  }
  return 0;
}

// The skew with which the buckets' mean is the histogram's.
double SkewOf(const std::vector<Bucket>& buckets, double mean) {
  constexpr int kParts = 32, kHalvings = 40;
  const auto mean_with = [&](double skew) {
    double sum = 0;
    for (const Bucket& bucket : buckets) {
      for (int i = 0; i < kParts; ++i)
        sum += bucket.share / kParts * Within(bucket, (i + 0.5) / kParts, skew);
    }
    return sum;
  };
  double low = 1.0 / 16, high = 16;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    (mean_with(middle) > mean ? low : high) = middle;
  }
  return low;
}

}  // namespace

absl::StatusOr<ClusterMeasurements> Measure(absl::Span<const ClusterSample> samples) {
  ClusterMeasurements measured;
  if (samples.empty() || samples.front().ranks.empty())
    return absl::FailedPreconditionError("no metrics of vLLM or SGLang were found");
  const size_t ranks = samples.front().ranks.size();
  measured.ranks = static_cast<int32_t>(ranks);
  BFIO_RETURN_IF_ERROR(CheckReported(samples.front()));
  for (auto* const of : {&measured.running, &measured.waiting, &measured.kv}) of->resize(ranks);
  MetricHistogram gaps, first_tokens, ends;
  double prompted = 0, cached = 0, generated = 0, between = 0, within = 0;
  for (size_t i = 1; i < samples.size(); ++i) {
    const ClusterSample &before = samples[i - 1], &after = samples[i];
    ClusterWindow window{.seconds = after.at_s - before.at_s};
    bool usable = window.seconds > 0;
    for (size_t g = 0; usable && g < ranks; ++g) usable = !Restarted(before.ranks[g], after.ranks[g]);
    if (!usable) continue;
    measured.seconds += window.seconds;
    double gap_s = 0, most_kv = 0;
    for (size_t g = 0; g < ranks; ++g) {
      const EngineMetrics &was = before.ranks[g], &is = after.ranks[g];
      const double kv = (was.kv_use * was.kv_tokens + is.kv_use * is.kv_tokens) / 2;
      measured.running[g] += window.seconds * (was.running + is.running) / 2;
      measured.waiting[g] += window.seconds * (was.waiting + is.waiting) / 2;
      measured.kv[g] += window.seconds * kv;
      most_kv = std::max(most_kv, kv);
      MetricHistogram own;
      window.gaps += Since(was.gaps, is.gaps, own);
      gap_s += own.sum;
      window.kv.push_back(kv);
      window.gap_s.push_back(MeanOf(own));
      window.prompted.push_back(is.prompted - was.prompted);
      prompted += is.prompted - was.prompted;
      cached += std::max(0.0, is.cached - std::max(0.0, was.cached));
      generated += is.generated - was.generated;
      Since(was.gaps, is.gaps, gaps);
      Since(was.first_tokens, is.first_tokens, first_tokens);
      Since(was.ends, is.ends, ends);
      Since(was.prompts, is.prompts, measured.prompts);
      Since(was.outputs, is.outputs, measured.outputs);
      measured.slots = std::max(measured.slots, is.slots);
    }
    measured.most_kv += window.seconds * most_kv;
    if (window.gaps <= 0) continue;
    window.step_s = gap_s / window.gaps;
    measured.windows.push_back(std::move(window));
  }
  if (measured.windows.size() < kLeastWindows) {
    return absl::FailedPreconditionError(
        absl::StrCat("tokens were generated between ", measured.windows.size(), " samples only; at least ",
                     kLeastWindows, " are needed: measure for longer, under traffic"));
  }
  if (ends.count < 1) return absl::FailedPreconditionError("no request has ended: measure for longer");
  for (auto* const of : {&measured.running, &measured.waiting, &measured.kv}) {
    for (double& value : *of) value /= measured.seconds;
  }
  for (const EngineMetrics& rank : samples.back().ranks) Since({}, rank.gaps, measured.gaps);
  measured.most_kv /= measured.seconds;
  measured.mean_kv = Sum(measured.kv) / static_cast<double>(ranks);
  measured.requests_per_s = ends.count / measured.seconds;
  measured.tokens_per_s = generated / measured.seconds;
  measured.prompt_tokens = prompted / ends.count;
  measured.output_tokens = generated / ends.count;
  measured.cached = prompted > 0 ? std::min(1.0, cached / prompted) : 0;
  measured.step_s = MeanOf(gaps);
  measured.ttft_s = MeanOf(first_tokens);
  measured.e2e_s = MeanOf(ends);
  measured.tokens_per_step = std::max(1.0, (generated - first_tokens.count) / std::max(1.0, gaps.count));
  for (const ClusterWindow& window : measured.windows) {
    for (const double gap_s : window.gap_s) {
      if (gap_s <= 0) continue;
      within += std::pow(gap_s - window.step_s, 2);
      between += std::pow(gap_s - measured.step_s, 2);
    }
  }
  // A window's mean takes a share of independent ranks' variance along.
  const double share = ranks > 1 ? static_cast<double>(ranks) / static_cast<double>(ranks - 1) : 1;
  measured.own_gaps = between > 0 ? std::min(1.0, share * within / between) : 0;
  return measured;
}

Trace DrawLengths(const ClusterMeasurements& measured, int64_t requests, uint64_t seed) {
  Trace trace{.source = "metrics", .format = "profile"};
  trace.requests.resize(static_cast<size_t>(requests));
  Rng rng(seed);
  const auto draw = [&](const MetricHistogram& histogram, int64_t TraceRequest::*field) {
    const std::vector<Bucket> buckets = BucketsOf(histogram, 1);
    if (buckets.empty()) return trace.requests.clear();
    const double skew = SkewOf(buckets, MeanOf(histogram));
    for (TraceRequest& row : trace.requests) {
      double at = rng.Uniform();
      size_t i = 0;
      while (i + 1 < buckets.size() && at >= buckets[i].share) at -= buckets[i++].share;
      const double tokens = Within(buckets[i], rng.Uniform(), skew);
      row.*field = std::llround(std::clamp(tokens, 1.0, static_cast<double>(kMostTokens)));
    }
  };
  draw(measured.prompts, &TraceRequest::prompt_tokens);
  draw(measured.outputs, &TraceRequest::output_tokens);
  return trace;
}

PromptRows::PromptRows(const Trace& trace, double cached, int32_t ranks, int64_t budget, uint64_t seed) {
  Rng rng(seed);
  for (double rate = kLeastRate; rate <= kMostRate; rate *= kRateFactor) {
    double sum = 0;
    for (int step = 0; step < kDrawnSteps; ++step) {
      double most = 0;
      for (int32_t g = 0; g < ranks; ++g) {
        double rows = 0;
        // A Poisson process: prompts begin after exponential times.
        for (double at = rng.Exponential(); at < rate; at += rng.Exponential())
          rows += (1 - cached) *
                  static_cast<double>(trace.requests[rng.Below(trace.requests.size())].prompt_tokens);
        most = std::max(most, std::min(rows, static_cast<double>(budget)) - kAssumedB0);
      }
      sum += most;
    }
    most_.push_back(sum / kDrawnSteps);
  }
}

double PromptRows::Most(double prompts_per_step) const {
  const double last = static_cast<double>(most_.size() - 1);
  const double at = std::log(std::max(prompts_per_step, 1e-12) / kLeastRate) / std::log(kRateFactor);
  if (at <= 0) return most_.front() * prompts_per_step / kLeastRate;
  const auto below = static_cast<size_t>(std::min(at, last - 1));
  const double part = std::min(at, last) - static_cast<double>(below);
  return (1 - part) * most_[below] + part * most_[below + 1];
}

std::optional<FittedCost> FitCost(const ClusterMeasurements& measured, const PromptRows& prompts,
                                  Rng* resample) {
  // Windows to fit, in blocks.
  const size_t count = measured.windows.size();
  std::vector<size_t> chosen;
  for (size_t i = 0; i < count; i += kBlockWindows) {
    const size_t from = resample == nullptr ? i : resample->Below(count);
    for (size_t j = from; j < std::min(count, from + kBlockWindows); ++j) chosen.push_back(j);
  }
  // The number of a window's steps follows from the fit so far, and not from its own step time, whose noise
  // would be on both sides.
  std::vector<double> expected_s(count, measured.step_s);
  const double quickest_s = QuantileOf(measured.gaps, kQuickest, kLeastStep);
  FittedCost fitted;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> rows(count), kv(count);
    for (size_t i = 0; i < count; ++i) {
      const ClusterWindow& window = measured.windows[i];
      const double begun = Sum(window.prompted) / std::max(1.0, measured.prompt_tokens);
      const double steps = window.seconds / expected_s[i] * static_cast<double>(window.prompted.size());
      rows[i] = prompts.Most(begun / steps);
      kv[i] = *std::ranges::max_element(window.kv);
    }
    Moments moments;
    for (const size_t i : chosen) moments.Add({rows[i], kv[i], measured.windows[i].step_s}, 1);
    // t = c + a rows + k2 kv.
    constexpr unsigned kBoth = TermBit(0) | TermBit(1);
    Line<2> line = FitLine(moments, kBoth);
    const double row_spread = std::sqrt(moments.co[0][0] / moments.weight);
    fitted.bound = line.rest > (1 - kLeastExplained) * moments.co[2][2] || !(line.c > 0) ||
                   (moments.mean[0] > kFewRows && row_spread < kLeastSpread * moments.mean[0]);
    if (fitted.bound) {
      if (!(quickest_s > 0)) return std::nullopt;
      line = FitLine(MomentsAbout(moments, {0, 0, std::min(quickest_s, moments.mean[2])}), kBoth);
    }
    fitted.cost = {.c_s = line.c,
                   .a_s_per_token = std::max(kLeastRowSeconds, line.slopes[0]),
                   .b0_tokens = kAssumedB0,
                   .k2_s_per_token = line.slopes[1]};
    for (size_t i = 0; i < count; ++i) expected_s[i] = line.At({rows[i], kv[i]});
  }
  return fitted;
}

}  // namespace bfio::sim
