// How much slower or faster each worker is than an ordinary one, from the step costs that workers report.
//
// Purpose: fits of C and t_l (common/cost/online_fit.h), which are uncertain and move all the time, become
// the times that plans balance (model/snapshot.h, WorkerView): time_per_token = t_l / t_l of the ordinary
// worker, the lower median of those that are known; time_offset = (C - the least C) in the ordinary worker's
// tokens. A worker that is not known well enough counts as ordinary. Plans must not follow the noise of the
// fits, so times change only when that moves some worker's step by kStep of an ordinary worker's against the
// others', and workers whose steps differ by less than kEqual are equal: exactly 1 and 0, which plans are
// made faster for. prefill_time is the cost of a prompt token over t_l, where that is known. Threads: none;
// belongs to its caller. Pure.
#ifndef BFIO_ROUTER_CORE_SCHEDULER_WORKER_SPEEDS_H_
#define BFIO_ROUTER_CORE_SCHEDULER_WORKER_SPEEDS_H_

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
  // Time of a prompt token, in an ordinary worker's tokens, at least 0.
  double prefill_time = 0;

  friend bool operator==(const WorkerTime&, const WorkerTime&) = default;
};

// One worker's reported costs.
struct WorkerCost {
  std::optional<StepCostEstimate> estimate;
  // L_g now: where on its line the worker is.
  int64_t load_tokens = 0;
};

// `present` with the times that the costs call for, by worker; the same times where nothing changes enough.
// REQUIRES: as many of both.
std::vector<WorkerTime> TimesOf(absl::Span<const WorkerCost> costs, absl::Span<const WorkerTime> present);

// What a mean request takes on each worker, for dispatch to the fastest (WorkerSpec::service_time): as in
// `told` (above 0); workers without a value count as the slowest of the others. If none has a value and all
// costs are known: what their steps take at the mean load against the fastest's, with the same hysteresis
// against `present`; else 1 for all. Always finite and above 0. Without costs, `present`. REQUIRES: as many
// of all, or no costs.
std::vector<double> ServiceTimesOf(absl::Span<const double> told, absl::Span<const WorkerCost> costs,
                                   absl::Span<const double> present);

// The judgement's constants: shares. Chosen so that a fit's own error, at most kKnown, stays some three
// standard deviations away from a change; not tuned beyond that.
struct WorkerSpeeds {
  // Standard error of t_l over t_l from which on a worker is known.
  static constexpr double kKnown = 0.03;
  static constexpr double kStep = 0.10;
  static constexpr double kEqual = 0.05;
  // No worker counts as more than so many times slower or faster than the ordinary one: a fit beyond that is
  // assumed to be wrong.
  static constexpr double kMost = 20;
  // Bounds of time_offset and prefill_time, tokens.
  static constexpr double kMostOffset = 1e8;
  static constexpr double kMostPrefill = 1e5;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SCHEDULER_WORKER_SPEEDS_H_
