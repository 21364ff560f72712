#include "tools/sim/admission/fluid.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace bfio::sim {
namespace {

// Thresholds grow until they are stable; rounding up makes that a matter of a few steps.
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

double NestedTokens(const Segments& segments, absl::Span<const int64_t> thresholds) {
  double tokens = 0;
  for (size_t i = 0; i < thresholds.size(); ++i) {
    tokens += static_cast<double>(thresholds[i]) * core::SegmentTokens(segments, i);
  }
  return tokens;
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
  // n_j = x rate_j: DT = d0 + d1 x load must stay below load x, so x is at least this; rounding up asks for
  // more.
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

Segments MergedSegments(absl::Span<const RequestType> types, int64_t count) {
  const int64_t longest = types.back().output;
  std::vector<int64_t> ends;
  for (int64_t i = 1; i <= count; ++i) {
    const int64_t end = (longest * i + count - 1) / count;
    if (ends.empty() || end > ends.back()) ends.push_back(end);
  }
  return core::SegmentsEndingAt(types, ends);
}

double NestedIteration(const Segments& segments, absl::Span<const int64_t> thresholds,
                       const IterationTime& time) {
  return time(NestedTokens(segments, thresholds));
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
  std::vector<int64_t> thresholds(segments.last_stage.size());
  double last_share = std::numeric_limits<double>::infinity();
  for (double first = 1; first < 1e9; first = std::ceil(first * 1.01)) {
    thresholds[0] = static_cast<int64_t>(first);
    for (size_t i = 1; i < thresholds.size(); ++i) {
      thresholds[i] = static_cast<int64_t>(
                          std::floor(margin * segments.survive[i] * static_cast<double>(thresholds[i - 1]))) +
                      1;
    }
    last_share = NestedIteration(segments, thresholds, time) * segments.rate / (load * first);
    if (last_share <= 1 && NestedIsStable(segments, thresholds, time)) return thresholds;
  }
  return Overloaded(last_share);
}

double SegmentDecay(double n_k, double n_before, double p) {
  const auto excess = [&](double theta) {
    return n_before * std::log1p(p * std::expm1(theta)) - n_k * theta;
  };
  // Convex, 0 and falling at 0, and rising for ever since n_k < n_before.
  double high = 1;
  while (excess(high) < 0 && high < 500) high *= 2;
  double low = 0;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (excess(middle) < 0 ? low : high) = middle;
  }
  return high;
}

double NestedMemoryBound(const Segments& segments, absl::Span<const int64_t> thresholds, double iterations,
                         double delta) {
  double tokens = NestedTokens(segments, thresholds);
  const auto gaps = static_cast<double>(thresholds.size() - 1);
  for (size_t i = 1; i < thresholds.size(); ++i) {
    const auto n = static_cast<double>(thresholds[i]), before = static_cast<double>(thresholds[i - 1]);
    // Never more than n wait when all of a batch fit.
    const double above =
        n >= before ? 0 : std::log(gaps * iterations / delta) / SegmentDecay(n, before, segments.survive[i]);
    tokens += static_cast<double>(segments.prompt + segments.last_stage[i - 1]) * (n + above);
  }
  return tokens;
}

}  // namespace bfio::sim
