#include "tools/sim/admission/fluid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace bfio::sim {
namespace {

// Limit on the search for stable thresholds. Only rounding requires a search, so a few steps suffice.
constexpr int kMaxSteps = 10'000'000;

double Load(absl::Span<const RequestType> types) {
  double load = 0;
  for (const RequestType& type : types) load += type.rate * core::StageTokens(type);
  return load;
}

absl::Status Overloaded(double share) {
  return absl::FailedPreconditionError(
      absl::StrCat("the load is ", share, " times what any batch size can carry"));
}

// The next threshold: above p times the one before.
int64_t Next(double margin, double p, int64_t before) {
  return static_cast<int64_t>(std::floor(margin * p * static_cast<double>(before))) + 1;
}

std::vector<int64_t> NestedFrom(const Segments& segments, double margin, int64_t first) {
  std::vector<int64_t> thresholds = {first};
  for (size_t i = 1; i < segments.last_stage.size(); ++i)
    thresholds.push_back(Next(margin, segments.survive[i], thresholds.back()));
  return thresholds;
}

}  // namespace

absl::StatusOr<Fluid> FluidEquilibrium(absl::Span<const RequestType> types, const IterationTime& time) {
  const double load = Load(types);
  if (time.d1 * load >= 1) return Overloaded(time.d1 * load);
  Fluid fluid;
  fluid.memory = time.d0 * load / (1 - time.d1 * load);
  for (const RequestType& type : types) {
    const double stages = static_cast<double>(type.output) + 1;
    fluid.requests.push_back(stages * type.rate * time(fluid.memory));
    fluid.throughput += type.rate * stages;
  }
  return fluid;
}

double ThroughputWithin(absl::Span<const RequestType> types, const IterationTime& time, double memory) {
  double throughput = 0;
  for (const RequestType& type : types) throughput += type.rate * (static_cast<double>(type.output) + 1);
  return throughput * std::min(1.0, memory / (time(memory) * Load(types)));
}

double WaitPeakTokens(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds) {
  double tokens = 0;
  for (size_t j = 0; j < types.size(); ++j)
    tokens += static_cast<double>(thresholds[j]) * core::StageTokens(types[j]);
  return tokens;
}

double WaitIteration(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds,
                     const IterationTime& time) {
  return time(WaitPeakTokens(types, thresholds));
}

bool WaitIsStable(absl::Span<const RequestType> types, absl::Span<const int64_t> thresholds,
                  const IterationTime& time) {
  const double iteration = WaitIteration(types, thresholds, time);
  for (size_t j = 0; j < types.size(); ++j) {
    if (iteration * types[j].rate >= static_cast<double>(thresholds[j])) return false;
  }
  return true;
}

absl::StatusOr<std::vector<int64_t>> WaitThresholds(absl::Span<const RequestType> types,
                                                    const IterationTime& time, double load) {
  if (const double share = time.d1 * Load(types) / load; share >= 1) return Overloaded(share);
  // n_j = x rate_j: DT = d0 + d1 x load must stay below load x, so x is at least this. Rounding up can
  // require a larger x.
  double x = time.d0 / (load - time.d1 * Load(types));
  std::vector<int64_t> thresholds(types.size());
  for (int step = 0; step < kMaxSteps; ++step) {
    double longest = 0;
    for (size_t j = 0; j < types.size(); ++j) {
      thresholds[j] = static_cast<int64_t>(std::floor(x * types[j].rate)) + 1;
    }
    for (size_t j = 0; j < types.size(); ++j) {
      longest = std::max(longest, WaitIteration(types, thresholds, time) * types[j].rate /
                                      (load * static_cast<double>(thresholds[j])));
    }
    if (longest <= 1) return thresholds;
    x *= std::max(longest, 1.001);
  }
  return Overloaded(1);
}

std::vector<int64_t> WaitThresholdsWithin(absl::Span<const RequestType> types, double memory) {
  std::vector<int64_t> thresholds(types.size());
  // n_j = x rate_j, rounded down.
  for (double x = memory / Load(types);; x *= 0.999) {
    for (size_t j = 0; j < types.size(); ++j)
      thresholds[j] = std::max<int64_t>(1, static_cast<int64_t>(x * types[j].rate));
    const bool least = std::all_of(thresholds.begin(), thresholds.end(), [](int64_t n) { return n == 1; });
    if (least || WaitPeakTokens(types, thresholds) <= memory) return thresholds;
  }
}

Segments MergedSegments(absl::Span<const RequestType> types, int64_t count) {
  const int64_t longest = types.back().output;
  std::vector<int64_t> ends;
  for (int64_t i = 1; i <= count; ++i) {
    const int64_t end = (longest * i + count - 1) / count;
    if (ends.empty() || end > ends.back()) ends.push_back(end);
  }
  return core::SegmentsEndingAt(types, ends);
}

double NestedPeakTokens(const Segments& segments, absl::Span<const int64_t> thresholds) {
  double tokens = 0;
  for (size_t i = 0; i < thresholds.size(); ++i)
    tokens += static_cast<double>(thresholds[i]) * core::SegmentTokens(segments, i);
  return tokens;
}

double NestedIteration(const Segments& segments, absl::Span<const int64_t> thresholds,
                       const IterationTime& time) {
  return time(NestedPeakTokens(segments, thresholds));
}

bool NestedIsStable(const Segments& segments, absl::Span<const int64_t> thresholds,
                    const IterationTime& time) {
  if (NestedIteration(segments, thresholds, time) * segments.rate >= static_cast<double>(thresholds[0]))
    return false;
  for (size_t i = 1; i < thresholds.size(); ++i) {
    if (static_cast<double>(thresholds[i]) <= segments.survive[i] * static_cast<double>(thresholds[i - 1]))
      return false;
  }
  return true;
}

absl::StatusOr<std::vector<int64_t>> NestedThresholds(const Segments& segments, const IterationTime& time,
                                                      double margin, double load) {
  double last_share = std::numeric_limits<double>::infinity();
  for (double first = 1; first < 1e9; first = std::ceil(first * 1.01)) {
    std::vector<int64_t> thresholds = NestedFrom(segments, margin, static_cast<int64_t>(first));
    last_share = NestedIteration(segments, thresholds, time) * segments.rate / (load * first);
    if (last_share <= 1 && NestedIsStable(segments, thresholds, time)) return thresholds;
  }
  return Overloaded(last_share);
}

std::vector<double> NestedFluidThresholds(const Segments& segments, const IterationTime& time, double margin,
                                          double load) {
  std::vector<double> thresholds = {1};
  double tokens = core::SegmentTokens(segments, 0);
  for (size_t i = 1; i < segments.last_stage.size(); ++i) {
    thresholds.push_back(margin * segments.survive[i] * thresholds.back());
    tokens += thresholds.back() * core::SegmentTokens(segments, i);
  }
  // n_1 = (d0 + d1 n_1 tokens) rate / load.
  const double left = load / segments.rate - time.d1 * tokens;
  if (left <= 0) return {};
  for (double& n : thresholds) n *= time.d0 / left;
  return thresholds;
}

std::vector<int64_t> NestedThresholdsWithin(const Segments& segments, double margin, double memory) {
  std::vector<int64_t> best = NestedFrom(segments, margin, 1);
  for (double first = 2; first < 1e9; first = std::ceil(first * 1.01)) {
    std::vector<int64_t> more = NestedFrom(segments, margin, static_cast<int64_t>(first));
    if (NestedPeakTokens(segments, more) > memory) break;
    best = std::move(more);
  }
  return best;
}

double SegmentDecay(double n_k, double n_before, double p) {
  const auto excess = [&](double theta) {
    return n_before * std::log1p(p * std::expm1(theta)) - n_k * theta;
  };
  // The function is convex, 0 and falling at 0, and eventually rising because n_k < n_before.
  double high = 1;
  while (excess(high) < 0 && high < 500) high *= 2;
  double low = 0;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (excess(middle) < 0 ? low : high) = middle;
  }
  return high;
}

NestedMemory NestedMemoryBound(const Segments& segments, absl::Span<const double> thresholds,
                               double iterations, double delta) {
  NestedMemory memory;
  const auto l = static_cast<double>(segments.prompt), count = static_cast<double>(thresholds.size());
  const double width = static_cast<double>(segments.last_stage.back()) / count;
  double ends = 0, before_end = 0;
  for (size_t i = 0; i < thresholds.size(); ++i) {
    const double n = thresholds[i], end = static_cast<double>(segments.last_stage[i]);
    ends += end;
    memory.peak += n * core::SegmentTokens(segments, i);
    memory.printed_peak += n * (l + ends / 2) * (end - before_end);
    memory.printed_equal_peak += n * (l + (static_cast<double>(i) + 1) * width / 2) * width;
    if (i > 0) {
      memory.queues += (l + before_end) * n;
      // With n >= before, no more than n requests wait.
      if (const double before = thresholds[i - 1]; n < before) {
        memory.excess += (l + before_end) * std::log((count - 1) * iterations / delta) /
                         SegmentDecay(n, before, segments.survive[i]);
      }
    }
    before_end = end;
  }
  return memory;
}

}  // namespace bfio::sim
