// The completion hints of simulated workers.
//
// Purpose: models an engine's end-of-sequence probability with a given accuracy. A request with r tokens left
// after the step has the hint min(1, exp(-(r - 1) / lead) * X), where X is lognormal with median 1 and
// standard deviation `noise` of its logarithm, drawn for each request and step. Hints below kFaintest are not
// reported.
// Threads: any, no state. Deterministic: the draw depends only on seed, request and step.
#ifndef BFIO_TOOLS_SIM_RUN_HINTS_H_
#define BFIO_TOOLS_SIM_RUN_HINTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "common/base/rng.h"
#include "router/core/model/request.h"

namespace bfio::sim {

struct HintModel {
  static constexpr double kFaintest = 1e-3;

  double lead = 8;
  double noise = 0.5;
  uint64_t seed = 1;

  // REQUIRES: tokens_left >= 1.
  std::optional<double> Show(core::RequestId id, int64_t step, int64_t tokens_left) const {
    const double plain = std::exp(-static_cast<double>(tokens_left - 1) / lead);
    // Even a draw of four standard deviations would be below kFaintest.
    if (plain * std::exp(4 * noise) < kFaintest) return std::nullopt;
    const double luck = std::exp(noise * Rng(seed).Fork(id).Fork(static_cast<uint64_t>(step)).Normal());
    const double shown = std::min(1.0, plain * luck);
    return shown < kFaintest ? std::nullopt : std::optional<double>(shown);
  }
};

}  // namespace bfio::sim

#endif  // BFIO_TOOLS_SIM_RUN_HINTS_H_
