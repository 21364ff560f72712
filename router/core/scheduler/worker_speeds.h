// How much slower or faster each worker is than an ordinary one, from the step costs that workers report
// (common/cost/online_fit.h). time_per_token = t_l / t_l of the ordinary worker, the lower median of the
// known ones. time_offset = (C - the least C) in the ordinary worker's tokens. A worker whose costs are not
// known well enough counts as ordinary. Times change only when that changes a worker's step, relative to the
// others, by a share kStep of an ordinary step; workers whose steps differ by less than kEqual get exactly 1
// and 0. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/cost/online_fit.h"

namespace bfio::core {

struct WorkerTime {
  double time_per_token = 1;
  // In an ordinary worker's tokens, at least 0.
  double time_offset = 0;

  friend bool operator==(const WorkerTime&, const WorkerTime&) = default;
};

// One worker's reported costs.
struct WorkerCost {
  std::optional<StepCostEstimate> estimate;
  // L_g now, at which the fitted step times are compared.
  int64_t load_tokens = 0;
};

// The new times by worker, from the costs; `present` itself where nothing changes enough. REQUIRES: both have
// the same size.
std::vector<WorkerTime> TimesOf(absl::Span<const WorkerCost> costs, absl::Span<const WorkerTime> present);

// Time of a mean request on each worker, for dispatch to the fastest (WorkerSpec::service_time). Taken from
// `told` where a value is above 0; workers without a value count as the slowest of the others. If none has a
// value and all costs are known: each worker's step time at the mean load relative to the fastest's, with the
// same hysteresis against `present`; otherwise 1 for all. Always finite and above 0. Without costs,
// `present`. REQUIRES: all have the same size, or there are no costs.
std::vector<double> ServiceTimesOf(absl::Span<const double> told, absl::Span<const WorkerCost> costs,
                                   absl::Span<const double> present);

// Thresholds, as shares. A fit's own error, at most kKnown, stays about three standard deviations below the
// threshold of a change. The values are not tuned otherwise.
struct WorkerSpeeds {
  // Largest relative standard error of t_l with which a worker's costs count as known.
  static constexpr double kKnown = 0.03;
  static constexpr double kStep = 0.10;
  static constexpr double kEqual = 0.05;
  // Largest factor by which a worker counts as slower or faster than the ordinary one; a fit beyond that is
  // assumed to be wrong.
  static constexpr double kMost = 20;
  // Bound of time_offset, tokens.
  static constexpr double kMostOffset = 1e8;
};

}  // namespace bfio::core
